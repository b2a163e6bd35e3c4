"""What the sidecar says over HTTP, and the few things that may be asked of it."""
