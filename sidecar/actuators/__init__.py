"""What carries out changes other than the trainer: requests to other systems, notes."""
