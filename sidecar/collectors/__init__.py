"""Passive readers of this machine, and the runner that keeps them on time."""
