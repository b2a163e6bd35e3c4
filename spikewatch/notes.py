"""What was changed in this run and when: for checkpoints, so that no curve has a kink nobody can explain."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
MOST = 1000  # notes kept; the oldest go first
_REMEMBERED = 256  # states of changes, more than the ledger has changes


@dataclass(frozen=True, slots=True)
class Note:
    """From `step` on, the settings in `values` hold."""

    step: int
    time: float  # seconds since 1970
    change: str  # the sidecar's id
    event: str  # applied or reverted
    by: str  # who undid it: order or lease
    values: dict[str, Any]
    before: dict[str, Any]

    def text(self) -> str:
        """For people."""
        settings = ", ".join(f"{name} {self.before.get(name)} → {value}" for name, value in self.values.items())
        return f"spikewatch {self.event} at step {self.step}: {settings} (change {self.change})"


class Notes:
    """The notes of one run, oldest first. On the training thread."""

    def __init__(self) -> None:
        self._notes: deque[Note] = deque(maxlen=MOST)
        self._states: OrderedDict[str, str] = OrderedDict()

    def look(self, reports: Iterable[Mapping[str, Any]], step: int, wall: float) -> list[Note]:
        """The new notes in the ledger's `reports` after `step`; `wall` in seconds since 1970."""
        found = []
        for report in reports:
            before, now = self._states.get(report["id"], "pending"), report["state"]
            self._states[report["id"]] = now
            if now == "applied" and before == "pending":
                found.append(self._of(report, "applied", report["values"], report["found"], wall))
            elif now == "reverted" and before != "reverted" and report["found"]:
                found.append(self._of(report, "reverted", report["found"], report["values"], wall))
        while len(self._states) > _REMEMBERED:
            self._states.popitem(last=False)
        self._notes.extend(found)
        return found

    @staticmethod
    def _of(
        report: Mapping[str, Any], event: str, values: Mapping[str, Any], before: Mapping[str, Any], wall: float
    ) -> Note:
        return Note(report["step"], wall, report["id"], event, report["by"], dict(values), dict(before))

    def state_dict(self) -> dict[str, Any]:
        """Plain values only, so that any checkpoint format takes it."""
        return {"version": VERSION, "changes": [asdict(note) for note in self._notes]}

    def load_state_dict(self, state: Any) -> None:
        """Puts the notes of `state` before those of this run; what it cannot read it leaves out."""
        changes = state.get("changes") if isinstance(state, dict) and state.get("version") == VERSION else None
        older = [note for entry in changes or () if (note := _read(entry)) is not None]
        self._notes = deque([*older, *self._notes], maxlen=MOST)


def _read(entry: Any) -> Note | None:
    try:
        return Note(**entry)
    except TypeError:
        return None
