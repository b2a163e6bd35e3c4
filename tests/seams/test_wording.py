"""What a value must be is said in words of the file, never in pydantic's."""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sidecar.errors import ConfigError
from sidecar.settings import Duration
from sidecar.yamlfile import Document


class Inner(BaseModel):
    a: int = 1


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")

    must: int
    number: float = Field(1.0, gt=0, allow_inf_nan=False)
    count: int = Field(1, ge=1, lt=10)
    flag: bool = True
    name: str = Field("x", min_length=1, max_length=5, pattern="^[a-z]+$")
    names: tuple[str, ...] = ()
    some: Annotated[list[int], Field(min_length=2)] = [1, 2]
    mode: Literal["up", "down"] = "up"
    inner: Inner = Inner()
    every: dict[str, int] = {}
    day: date = date(2026, 1, 1)
    file: Path = Path("x")
    pause: Duration = Field(1000, ge=50, le=3_600_000)
    own: int = 0

    @field_validator("own")
    @classmethod
    def _own(cls, value: int) -> int:
        if value == 7:
            raise ValueError("seven is taken")
        return value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("number: many", "number: must be a number"),
        ("number: .nan", "number: must be a finite number"),
        ("number: 0", "number: must be more than 0"),
        ("count: 1.5", "count: must be a whole number"),
        ("count: some", "count: must be a whole number"),
        ("count: 0", "count: must be at least 1"),
        ("count: 10", "count: must be less than 10"),
        ("flag: maybe", "flag: must be true or false"),
        ("flag: [1]", "flag: must be true or false"),
        ("name: 7", "name: must be text: write it in quotes"),
        ("name: ''", "name: must not be empty"),
        ("name: abcdefgh", "name: is too long: at most 5"),
        ("name: A", "name: must match ^[a-z]+$"),
        ("names: 3", "names: must be a list"),
        ("names: [a, 3]", "names.1: must be text: write it in quotes"),
        ("some: [1]", "some: is too short: at least 2"),
        ("mode: left", "mode: must be 'up' or 'down'"),
        ("inner: 3", "inner: must be a mapping"),
        ("every: [1]", "every: must be a mapping"),
        ("day: soon", "day: must be a date like 2026-01-31"),
        ("file: 3", "file: must be the path of a file"),
        ("pause: 20ms", "pause: must be at least 50ms"),
        ("pause: 2h", "pause: must be at most 1h"),
        ("own: 7", "own: seven is taken"),
    ],
)
def test_a_wrong_value_is_told_what_it_must_be(line, said):
    with pytest.raises(ConfigError) as caught:
        Document("f.yaml", f"must: 1\n{line}\n").validate(Shape)
    (problem,) = caught.value.problems
    assert problem.message == said
    assert problem.line == 2


def test_what_is_not_there_is_missing():
    with pytest.raises(ConfigError, match=r"f\.yaml:1:1: error: must: is missing"):
        Document("f.yaml", "count: 2\n").validate(Shape)
