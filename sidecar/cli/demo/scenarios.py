"""The demo's scenarios: what goes wrong, what answers it, and how it should end; and the times all of them keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sidecar import durations
from sidecar.cli.demo.store import SIDES
from sidecar.errors import ConfigError
from sidecar.responses import matchers
from sidecar.yamlfile import Document

ALERT = "TrainerStarvedOfData"
RULES = "data_pipeline.rules.yaml"  # of the shipped rules


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the demo spends on what, in seconds. The waits of the alert and the experiment are in their files."""

    warm_up: float = 12.0
    moment: tuple[float, float] = (3.0, 8.0)  # after the warm-up, the trouble starts somewhere in here
    start_within: float = 60.0  # sidecar up, trainer importing torch and doing its first step
    fire_within: float = 60.0  # from the start of the trouble
    decide_within: float = 120.0  # from firing to the verdict: rest of the baseline, settling, window
    report_within: float = 20.0  # until every rank reports the settings it has in the end
    after: float = 3.0  # of training go on after the end, so that the log shows it
    best_warm_up: float = 4.0
    best: float = 15.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One story. `trouble` is what the store is told at the random moment.

    With `starve` it is told a latency as well: one at which the loader delivers a batch only every `starve` healthy
    steps of this machine. A fixed latency would starve a fast machine and pass unnoticed on a slow one.
    """

    name: str
    title: str
    responses: str  # file beside this module
    verdict: str  # it should end with
    rolled_back: bool
    trouble: Mapping[str, float]
    trouble_text: str
    starve: float = 0.0
    trainer_arguments: tuple[str, ...] = ()
    detection_s_max: float = 5.0
    gain_min: float = 0.0  # after ÷ before
    of_best_min: float = 0.0  # after ÷ best

    @property
    def responses_path(self) -> Path:
        """The responses file the sidecar is given."""
        return Path(__file__).with_name(self.responses)

    def latency_ms(self, healthy_step_s: float, workers: int, batch_size: int) -> float:
        """Milliseconds per GET at which `workers` deliver a batch every `starve` healthy steps."""
        return 1000 * self.starve * healthy_step_s * workers / batch_size


_SLOW_STORE = "the object store becomes slow"

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario(
                name="data-starvation",
                title="The object store becomes slow; more loader workers hide its latency",
                responses="data-starvation.responses.yaml",
                verdict="helped",
                rolled_back=False,
                trouble={},
                trouble_text=_SLOW_STORE,
                starve=4.0,
                gain_min=1.5,
                of_best_min=0.9,
            ),
            Scenario(
                name="bad-fix",
                title="The object store becomes slow; the configured answer takes workers away",
                responses="bad-fix.responses.yaml",
                verdict="did not help",
                rolled_back=True,
                trouble={},
                trouble_text=_SLOW_STORE,
                starve=4.0,
            ),
            Scenario(
                name="cpu-bound",
                title="The images become large; decoding is limited as by a CPU quota, and workers cannot help",
                responses="data-starvation.responses.yaml",
                verdict="did not help",
                rolled_back=True,
                trouble={"side": SIDES[1]},
                trouble_text=f"the images become {SIDES[1]} × {SIDES[1]} pixels; decoding is limited as by a CPU quota",
                # A narrow network: decoding must be what limits also on a machine that is busy with other things.
                trainer_arguments=("--decode-pixels-per-s", "36e6", "--width", "48"),
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Waits:
    """What the rule and the response make everybody wait for, in seconds."""

    pending_s: float  # the rule's `for`
    baseline_s: float
    window_s: float
    range_s: float = 10.0  # the range in the verified expression: that long old and new mix


def waits(rules: Path, responses: Path) -> Waits:
    """From a rule file with the demo's alert, and a responses file. Raises ConfigError for others."""
    rule_file, response_file = Document.read(rules), Document.read(responses)
    try:
        pending = next(rule.get("for", "0s") for rule in _alerts(rule_file.value) if rule["alert"] == ALERT)
    except (StopIteration, LookupError, TypeError, AttributeError):
        raise ConfigError([rule_file.problem((), f"the scenario is about {ALERT}: no such alert is here")]) from None
    try:
        verify = [r["verify"] for r in response_file.value["responses"] if "verify" in r and _may_answer(r)]
        longest = [max(durations.parse(v.get(name, "180s")) for v in verify) for name in ("baseline", "window")]
    except (LookupError, TypeError, AttributeError, ValueError):
        text = f"no response with a `verify` for {ALERT}: `spikewatch check` tells more"
        raise ConfigError([response_file.problem((), text)]) from None
    return Waits(durations.parse(str(pending)) / 1000, *(ms / 1000 for ms in longest))


def _may_answer(response: Mapping[str, Any]) -> bool:
    found = [m for text in response.get("match", ()) for m in matchers.parse(text) if m.name == "alertname"]
    return all(m.matches({"alertname": ALERT}) for m in found)


def _alerts(rules: Any) -> Iterator[Mapping[str, Any]]:
    return (rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule)


def shipped_rules() -> Path:
    """The rule file that the demo's sidecar loads as `shipped:…`."""
    return Path(str(resources.files("spikewatch_rules"))) / RULES
