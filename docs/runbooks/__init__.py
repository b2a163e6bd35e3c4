"""The runbooks, as package data: the sidecar serves them where the alerts link to."""
