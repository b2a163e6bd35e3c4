"""`make docs`: writes the pages that come from the program itself; a test fails when they are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from sidecar.alerting.loader import load_rules
from sidecar.app import records
from sidecar.app.files import shipped_folder
from sidecar.durations import text
from sidecar.plugins import Registry

HERE = Path(__file__).parent


def metrics() -> str:
    """docs/metrics.md: every metric there is."""
    registry = Registry()
    registry.discover()
    lines = [
        "# Metrics",
        "",
        "Everything the sidecar can export on `/metrics`. Units are base units, counters end in `_total`. A series",
        "that is missing is missing: no value is ever made up. Written by `make docs`.",
        "",
        "*Checked* says against what: `device` is the real source (kernel, driver, library, trainer), `fake` a",
        "stand-in of the tests, `none` nothing yet; where it is empty the sidecar counts something about itself. A",
        "response built on a metric that is not `device` suggests at most. `spikewatch doctor --metrics` adds what is",
        "seen in a pod.",
        "",
        "| metric | type | labels | of | checked | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for info in sorted(records.catalogue(registry), key=lambda i: i.name):
        labels = ", ".join(f"`{label}`" for label in info.labels)
        what = info.verified
        checked = " ".join(part for part in (what.against, what.date, what.detail) if part) if what else ""
        quality = "" if info.quality == "exact" else f" ({info.quality})"
        lines.append(f"| `{info.name}` | {info.kind} | {labels} | {info.scope} | {checked} | {info.help}{quality} |")
    return "\n".join(lines) + "\n"


def rules() -> str:
    """docs/rules.md: every shipped alert."""
    lines = [
        "# Shipped alerts",
        "",
        "Plain Prometheus rules: `promtool check rules` accepts them, Prometheus evaluates them to the same result.",
        "Change whole values with an [overrides file](configuration.md), not by editing. Written by",
        "`make docs`.",
        "",
    ]
    for path in sorted(shipped_folder().glob("**/*.rules.yaml")):
        for group in load_rules([path]).groups:
            lines += [f"## `{path.relative_to(shipped_folder())}`, group `{group.name}`", ""]
            for rule in group.rules:
                if not rule.is_alert:
                    lines += [f"Records `{rule.name}`.", ""]
                    continue
                labels, annotations = dict(rule.label_texts), dict(rule.annotation_texts)
                lines += [
                    f"### {rule.name}",
                    "",
                    f"{annotations.get('summary', '')}",
                    "",
                    f"Signal `{labels.get('signal', '')}`, severity {labels.get('severity', '')}, "
                    f"after the condition held for {text(rule.for_ms)}:",
                    "",
                    "```promql",
                    rule.expr,
                    "```",
                    "",
                ]
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"metrics.md": metrics, "rules.md": rules}


def main() -> int:
    """Writes every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
