"""The probes, one family a file."""
