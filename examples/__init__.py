"""Training scripts that run alone and in the demo."""
