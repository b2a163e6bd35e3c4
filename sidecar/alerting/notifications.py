"""From an alert to what is posted to Alertmanager."""

from __future__ import annotations

from urllib.parse import quote_plus

from sidecar.alerting.state import NEVER, Instance
from sidecar.model import Labels, Notification


def generator_url(external_url: str, expr: str) -> str:
    """Where the expression can be looked at: the table view of the page at `external_url`."""
    return f"{external_url.rstrip('/')}/graph?g0.expr={quote_plus(expr)}&g0.tab=1"


def notification(
    instance: Instance, annotations: tuple[tuple[str, str], ...], expr: str, external_labels: Labels, external_url: str
) -> Notification:
    """A firing alert ends when its last message stops being valid, a resolved one when it resolved.

    External labels are added only where the alert has no such label.
    """
    present = {name for name, _ in instance.labels}
    labels = tuple(sorted([*instance.labels, *(pair for pair in external_labels if pair[0] not in present)]))
    resolved = instance.resolved_at_ms != NEVER
    return Notification(
        labels=labels,
        annotations=annotations,
        starts_at_ms=instance.fired_at_ms,
        ends_at_ms=instance.resolved_at_ms if resolved else instance.valid_until_ms,
        generator_url=generator_url(external_url, expr),
    )
