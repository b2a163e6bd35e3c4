"""Placeholder line, replaced by the module that lands here."""
