"""What the demo measured, and whether the scenario ended as it should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sidecar.cli.demo.scenarios import Scenario
from sidecar.cli.demo.traininglog import Accounting
from sidecar.model import KnobValue


@dataclass(frozen=True, slots=True)
class Report:
    """What `--json` writes.

    Rates are samples per second of all ranks together, by the training script's own log: `before` while starved,
    `after` under the change, `best` in a run that had the final knobs from the start. `detection_s` is seconds from
    the beginning of the first starved step to the alert firing, less the `for` of its rule. `verdict` is `helped`,
    `did not help`, `inconclusive`, or empty where there was none; what could not be measured is null.
    """

    scenario: str
    samples_per_s_before: float | None
    samples_per_s_after: float | None
    samples_per_s_best: float | None
    detection_s: float | None
    verdict: str
    rolled_back: bool
    knobs_before: Mapping[str, KnobValue]
    knobs_after: Mapping[str, KnobValue]
    samples_lost: int
    samples_repeated: int

    def write(self, path: Path) -> None:
        """As one JSON object."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def usd_per_hour(self, gpus: int, usd_per_gpu_hour: float) -> float | None:
        """What the slower of the two rates wastes of the GPUs' price per hour; negative where the change was slower.

        The faster rate would have taken `slower / faster` of the time, and of the money, for the same samples.
        """
        before, after = self.samples_per_s_before, self.samples_per_s_after
        if not before or not after:
            return None
        wasted = gpus * usd_per_gpu_hour * (1 - min(before, after) / max(before, after))
        return wasted if after >= before else -wasted


def differences(report: Report, expected: Scenario, accounting: Accounting) -> list[str]:
    """Every way in which the end differs from what the scenario promises; empty when it ended as it should."""
    found = []

    def want(holds: bool, text: str) -> None:
        if not holds:
            found.append(text)

    want(report.verdict == expected.verdict, f"verdict {report.verdict or 'none'!r}, expected {expected.verdict!r}")
    want(
        report.rolled_back == expected.rolled_back,
        f"the change was {'' if report.rolled_back else 'not '}rolled back",
    )
    if expected.rolled_back:
        want(
            dict(report.knobs_after) == dict(report.knobs_before),
            f"knobs found {dict(report.knobs_before)}, left {dict(report.knobs_after)}",
        )
    want(accounting.consumed > 0, "no sample was consumed")
    want(report.samples_lost == 0, f"{report.samples_lost} samples lost")
    want(report.samples_repeated == 0, f"{report.samples_repeated} samples repeated")
    want(accounting.reordered == 0, f"{accounting.reordered} samples out of order")
    found += _rates(report, expected)
    return found


def _rates(report: Report, expected: Scenario) -> list[str]:
    before, after, best = report.samples_per_s_before, report.samples_per_s_after, report.samples_per_s_best
    if before is None or after is None or best is None or report.detection_s is None:
        missing = [name for name, value in asdict(report).items() if value is None]
        return [f"not measured: {', '.join(missing)}"]
    found = []
    if report.detection_s > expected.detection_s_max:
        found.append(f"detected after {report.detection_s:.1f} s, allowed are {expected.detection_s_max:g} s")
    if after < expected.gain_min * before:
        found.append(f"{after:.1f} samples/s after, less than {expected.gain_min:g} × the {before:.1f} before")
    if after < expected.of_best_min * best:
        found.append(f"{after:.1f} samples/s after, less than {expected.of_best_min:g} × the best {best:.1f}")
    return found
