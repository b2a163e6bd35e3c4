"""Alert rules, their unit tests and the shipped responses, as package data."""
