"""The past, read back: samples in order of time from OpenMetrics files and from servers with Prometheus's API."""
