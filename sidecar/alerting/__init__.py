"""Alerting: Prometheus rule files, the alert state machine, templates, and rule unit tests.

loader.load_rules → rules.RuleGroup → manager.Manager(groups, query, write).tick(now) → alert events.
A rule's way through a tick: group (which slot) → runner (query, write, health) → state.step (pure).
"""
