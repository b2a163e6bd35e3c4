"""Remediation plugins, one file each, found through entry points."""
