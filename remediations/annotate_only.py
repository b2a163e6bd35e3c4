"""Writes a note into the journal beside the alert and does nothing: a runbook's first line, whom to ask, the cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sidecar.hooks import Case, Details, View
from sidecar.model import Alert, AlertState, Change, Skip, TrainerIdentity, labels_of


class Params(BaseModel):
    """`with:` of a response. `{{ $value }}` and `{{ $labels.NAME }}` are the alert's, as in any parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    note: str = Field(min_length=1, max_length=2_000)


class AnnotateOnly:
    """Its decision in the journal is the note. The actuator `notes` is always there and changes nothing."""

    name: ClassVar[str] = "annotate_only"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "notes"
    knobs: ClassVar[tuple[str, ...]] = ("note",)
    example: ClassVar[Mapping[str, Any]] = {"note": "A straggler: ask #ml-platform to drain the node"}
    details: ClassVar[Details] = Details(
        cases=(
            Case(
                "the note is the decision",
                example,
                Alert("StragglerRank", labels_of({"rank": "3"}), (), AlertState.FIRING, 1.5, 0),
                View({}, TrainerIdentity("notes", "", ("notes",), (0,), 1), {}),
                Skip("annotated", "A straggler: ask #ml-platform to drain the node"),
            ),
        ),
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Always skips, with `annotated` and the note."""
        assert isinstance(params, Params)
        return Skip("annotated", params.note)
