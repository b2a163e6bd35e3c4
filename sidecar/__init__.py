"""The sidecar process: measures, evaluates alert rules, notifies, and tries remediations that prove themselves."""

__version__ = "0.1.0"
