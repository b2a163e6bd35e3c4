"""`make docs`: writes the pages that come from the program itself; a test fails when they are out of date."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from sidecar.alerting.loader import load_rules
from sidecar.alerting.rules import Rule
from sidecar.app import records
from sidecar.app.files import shipped_folder
from sidecar.app.rulepack import read_pack, shipped_files
from sidecar.cli.rules_text import EVALUATED
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
                    f"[Runbook](runbooks/{rule.name}.md)",
                    "",
                ]
    return "\n".join(lines).rstrip() + "\n"


def signals() -> str:
    """docs/signals.md: every signal as it was last provoked (docs/proof/signals.json)."""
    record = json.loads((HERE / "proof" / "signals.json").read_text())
    rows = [row for story in record["stories"].values() for row in story["rows"]]
    lines = [
        "# The signals, provoked",
        "",
        "What `make proof ARGS=tests/signals` found: each signal's cause was brought about under a whole sidecar with",
        "the shipped rules and responses; where the source can be well before (a bill cannot) it was, and nothing had",
        "fired. Written by `make docs`",
        f"from [`proof/signals.json`](proof/signals.json) (last of {record['date']}).",
        "",
        "*Checked* says what the source was: `device` the real thing (kernel, files, processes, training runs with",
        "PyTorch on the CPU), `recorded` answers of a real one, `fake` a stand-in of the tests. *Fires after* are",
        "seconds from the cause to firing. A `for` of more than a minute was not waited out: `3 s + 5m` is what was",
        "measured until the condition held, and the `for` that ships. Plans that wait for an approval got it where the",
        "trial can be judged without a GPU: `acted`, and a verdict; the others are left waiting.",
        "",
        "| signal | alert | at | source | checked | cause | fires after | answered by | decision | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = {rule.name: place for place, rule in enumerate(_layer_alerts())}
    rows.sort(key=lambda row: order.get(row["alert"], len(order)))
    for slug in shipped_signals():
        own = [row for row in rows if row["signal"] == slug]
        lines += [_provoked(row) for row in own] or [f"| `{slug}` | | | not provoked | | | | | | |"]
    return "\n".join([*lines, *_healthy()]) + "\n"


def _healthy() -> list[str]:
    """What the same rules say where nothing is wrong (docs/proof/healthy.json)."""
    replays = json.loads((HERE / "proof" / "healthy.json").read_text())["replays"]
    lines = [
        "",
        "## And where nothing is wrong",
        "",
        "`spikewatch backtest` of all shipped rules, every second, over recordings of a training run with PyTorch on",
        "the CPU under the whole sidecar: start, compilation, evaluations, checkpoints, epoch turns, and half way a",
        "restart from a checkpoint; beside it a stand-in for a GPU, 92 % of its memory and 90 % of its SMs in use.",
        "Once with steps of 0.16 s, once with steps of 40 s, 20 minutes each. Nothing may fire above `info`; record",
        "your own with `python -m bench.record_healthy`.",
        "",
        "| recording, variant | samples | rules evaluated | fired |",
        "|---|---|---|---|",
    ]
    for name, row in replays.items():
        fired = ", ".join(f"{alert} ({severity})" for alert, severity in row["fired"].items()) or "nothing"
        lines.append(f"| {name} | {row['samples']:,} | {row['evaluations']:,} | {fired} |")
    return lines


def shipped_signals() -> list[str]:
    """The slugs of the shipped rules, those of `extra/` left out, in the order of layers and rules."""
    return list(dict.fromkeys(dict(rule.label_texts)["signal"] for rule in _layer_alerts()))


def _layer_alerts() -> list[Rule]:
    paths = [shipped_folder() / f"{layer}.rules.yaml" for layer in LAYERS]
    return [rule for group in load_rules(paths).groups for rule in group.rules if rule.is_alert]


def _provoked(row: dict[str, Any]) -> str:
    waited = row["for_was_waited_out"]
    after = f"{row['seconds']:g} s" if waited else f"{row['detection_s']:g} s + {text(round(row['for_s'] * 1000))}"
    answers = row["responses"] or [{"response": "", "decision": "", "verdict": "", "result": "", "gain_percent": None}]
    cells = [
        f"`{row['signal']}`",
        row["alert"],
        row["at"],
        row["source"],
        row["against"],
        row["cause"],
        after,
        "<br>".join(f"`{a['response']}`" if a["response"] else "" for a in answers),
        "<br>".join(f"`{a['decision']}`" if a["decision"] else "" for a in answers),
        "<br>".join(_verdict(a) for a in answers),
    ]
    return "| " + " | ".join(cells) + " |"


def _verdict(answer: dict[str, Any]) -> str:
    if not answer["verdict"]:
        return ""
    gain = "" if answer["gain_percent"] is None else f", {answer['gain_percent']:+.0f} %"
    return f"{answer['verdict'].replace('_', ' ')}{gain}, {answer['result'].replace('_', ' ')}"


LAYERS = ("infrastructure", "scheduling", "data_pipeline", "observability", "training")


def runbooks() -> str:
    """docs/runbooks/README.md: which runbook is for what."""
    lines = [
        "# Runbooks",
        "",
        "One page for each shipped alert: what it is and costs, how to confirm it by hand, what is done about it, how",
        "to tune it, and when it is wrong. One page of a signal tells the whole story, the others point to it.",
        "Written by `make docs`.",
        "",
        "`spikewatch …` is run in the sidecar's container (`kubectl exec $POD -c spikewatch -- spikewatch …`), or",
        "anywhere with `--url`; what is *on the node* in a shell of the node. To change an alert, copy the block under",
        "*Tune* into your [overrides file](../configuration.md). `spikewatch rules show ALERT` prints the expression",
        "as it ships, `spikewatch rules explain ALERT` how it stands now.",
        "",
        "| alert | severity | signal | evaluated | |",
        "|---|---|---|---|---|",
    ]
    for signal in read_pack(shipped_files(extra=True)).signals():
        for alert in signal.alerts:
            name, labels = alert.rule.name, alert.labels
            summary = dict(alert.rule.annotation_texts)["summary"]
            what = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", summary).rstrip(".")
            place = EVALUATED[alert.at]
            lines.append(f"| [{name}]({name}.md) | {labels['severity']} | `{labels['signal']}` | {place} | {what} |")
    return "\n".join(lines) + "\n"


PAGES = {"metrics.md": metrics, "rules.md": rules, "signals.md": signals, "runbooks/README.md": runbooks}


def main() -> int:
    """Writes every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
