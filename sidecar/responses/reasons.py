"""Every reason of a decision, in a sentence: what `spikewatch journal --why` says beside the word."""

from __future__ import annotations

from collections.abc import Mapping

EXPLAINED: Mapping[str, str] = {
    # may pass
    "alert_settling": "the response before helped; the alert may still be looking back at the time before",
    "awaiting_approval": "its plan waits for somebody to say yes",
    "busy": "another change is being tried on this trainer",
    "cooldown": "it acted a short while ago",
    "guard_absent": "an abort_if expression reads a series that does not exist",
    "guard_broken": "an abort_if expression already holds",
    "kill_switch": "the kill switch is on",
    "no_trainer": "no trainer is attached",
    "outside_time_intervals": "its time intervals do not let it act now",
    "per_hour": "it has acted as often as allowed within an hour",
    "query_error": "verify.expr or a guard cannot be evaluated",
    "silenced": "the alert is silenced in Alertmanager",
    "steady": "the remediation sees nothing yet that it would answer",
    "thin_history": "the remediation reads more of the past than has been measured yet",
    "thin_baseline": "what the trainer did before has not been measured for long enough",
    # final
    "acted": "it was done",
    "approval_expired": "nobody said yes in time, or what it waited for took longer than the yes counted",
    "bad_parameters": "its parameters do not fit with this alert's labels and value in them",
    "breaker_open": "its last experiments did not help; somebody has to reset it",
    "episode_limit": "too many alerts were open at once",
    "interrupted": "the sidecar was stopped",
    "knob_missing": "the trainer does not offer what would be changed",
    "no_actuator": "what carries out such a change is not there",
    "no_change": "the trainer has these values already",
    "not_in_rollout": "this job is not among those that it acts on yet",
    "not_leader": "a change for all ranks is made by the sidecar of global rank 0",
    "not_one_element": "verify.expr gives several series",
    "observe": "its mode is observe: the plan was noted, nothing was done",
    "out_of_bounds": "the plan leaves the bounds of a setting",
    "plugin_error": "the remediation failed while it planned",
    "quarantined": "the setting ended in an out-of-memory kill earlier in this job",
    "rejected": "somebody said no",
    "resolved": "the alert went away first",
    "response_removed": "a reload removed the response",
    "undeclared_knob": "the remediation would change something that it does not declare",
}
"""The engine's own. A remediation adds its own reasons for doing nothing, which its page explains."""
