"""Answers to firing alerts: episodes, experiments with a verdict, limits, the journal."""
