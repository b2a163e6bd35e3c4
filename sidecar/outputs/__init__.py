"""Where results go: Alertmanagers and the /metrics page."""
