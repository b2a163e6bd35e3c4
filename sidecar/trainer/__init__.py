"""The sidecar's end of the trainer channel: telemetry of every attached rank in, commands out."""
