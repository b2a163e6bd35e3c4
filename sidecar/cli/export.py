"""`spikewatch export`: the same rules for a Prometheus that evaluates them centrally."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from sidecar import durations
from sidecar.cli.values import DURATION, pair

# What the API server takes: RFC 1123 labels, and qualified names for labels.
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@click.command()
@click.argument("form", type=click.Choice(["prometheusrule", "rules"]), metavar="prometheusrule|rules")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--scrape-interval",
    type=DURATION,
    default=None,
    metavar="DURATION",
    help="How often Prometheus scrapes: windows shorter than four intervals are made that long. "
    "Leave it out where samples arrive by remote write.",
)
@click.option(
    "--overrides",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An overrides.yaml: what it changes and disables is exported so.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="A file instead of the terminal.")
@click.option("--runbooks", default="", metavar="URL", help="Where runbooks are: put before /ALERT in `runbook_url`.")
@click.option("--namespace", default="", help="Of the PrometheusRule objects.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="On the objects; operators select by it.")
def export(
    form: str,
    files: tuple[Path, ...],
    scrape_interval: int | None,
    overrides: Path | None,
    output: Path | None,
    runbooks: str,
    namespace: str,
    labels: tuple[str, ...],
) -> None:
    """Writes rule files for Prometheus, Mimir or VictoriaMetrics; without FILES the shipped ones.

    \b
    prometheusrule  a monitoring.coreos.com/v1 PrometheusRule for each file
    rules           one plain rule file

    What was made longer is told on the terminal, in the object's annotation `spikewatch.io/widened`, and in a plain
    file in a comment at the rule. Exits 1 when a file would be refused by Prometheus.
    """
    from sidecar.alerting.export import export as read
    from sidecar.alerting.export import prometheus_rules, rule_file
    from sidecar.alerting.loader import load_rules
    from sidecar.alerting.overrides import load_overrides
    from sidecar.app.files import shipped_folder
    from sidecar.errors import ConfigError
    from sidecar.yamlfile import Document

    object_labels = dict(pair(text, "=", "NAME=VALUE") for text in labels)
    for option, text, shape in (
        ("--namespace", namespace, _NAMESPACE),
        *(("--label", value, _LABEL_VALUE) for value in object_labels.values()),
        *(("--label", name, _LABEL_NAME) for name in object_labels),
    ):
        if text and not shape.fullmatch(text):
            raise click.BadParameter(f"Kubernetes takes no {text!r}", param_hint=f"'{option}'")
    try:
        sources = files or sorted(shipped_folder().glob("**/*.rules.yaml"))
        documents = [Document.read(path) for path in sources]
        changes = load_overrides(Document.read(overrides), load_rules(documents).groups) if overrides else ()
        exported = [read(document, scrape_interval or 0, changes, runbooks) for document in documents]
        is_object = form == "prometheusrule"
        text = prometheus_rules(exported, namespace, object_labels) if is_object else rule_file(exported)
    except ConfigError as e:
        for problem in e.problems:
            click.echo(str(problem), err=True)
        sys.exit(1)
    for file in exported:
        for group, rule, widening in file.widenings():
            was = ", ".join(dict.fromkeys(durations.text(ms) for ms in widening.was_ms))
            line = f"{file.file}: {group.name}/{rule.name}: window {was} made {durations.text(file.least_ms)} long"
            if widening.growing:
                line += f"; {', '.join(widening.growing)} over it grows with it: look at the threshold"
            click.echo(line, err=True)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as e:
        click.echo(f"spikewatch: {output} cannot be written: {e.strerror}", err=True)
        sys.exit(1)
