"""The demo's scenarios: what goes wrong, what answers it, and how it should end; and the times all of them keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sidecar.cli.demo.store import SIDES

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
    undo_within: float = 20.0  # from the verdict to the found values being back
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
                starve=2.5,
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
                starve=2.5,
            ),
            Scenario(
                name="cpu-bound",
                title="The images become large; the loader has one core, so more workers cannot help",
                responses="data-starvation.responses.yaml",
                verdict="did not help",
                rolled_back=True,
                trouble={"side": SIDES[1]},
                trouble_text=f"the images become {SIDES[1]} × {SIDES[1]} pixels, on one core for all loader workers",
                trainer_arguments=("--pin-workers",),
            ),
        )
    }
)
