"""What came of a rule unit test, and how it is told: what is missing and what is too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.errors import Problem
from sidecar.model import Labels


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that failed, or with `message` could not be made. Lines of both sides are sorted."""

    case: str
    line: int
    what: str
    expected: tuple[str, ...] = ()
    got: tuple[str, ...] = ()
    message: str = ""

    def __str__(self) -> str:
        head = f"{self.what}, in {self.case!r}" if self.case else self.what
        if self.message:
            return f"{head}\n    {self.message}"
        return "\n".join([head, *(f"    {line}" for line in _diff(self.expected, self.got))])


def _diff(expected: Iterable[str], got: Iterable[str]) -> Iterable[str]:
    want, have = Counter(expected), Counter(got)
    yield from (f"- {line}" for line in sorted((want - have).elements()))
    yield from (f"+ {line}" for line in sorted((have - want).elements()))
    both = want & have
    if both:
        yield f"  ({both.total()} as expected)"
    if not want:
        yield "  (expected nothing)"
    if not have:
        yield "  (got nothing)"


@dataclass(frozen=True, slots=True)
class Report:
    """One file. `problems` are findings about the file itself; an error among them means nothing was run."""

    file: str
    cases: int
    checks: int
    failures: tuple[Failure, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the file could be run and every check held."""
        return not self.failures and all(p.level == "warning" for p in self.problems)

    def lines(self) -> Iterable[str]:
        """For people: a heading, then every finding, `-` expected and missing, `+` there and not expected."""
        verdict = "passed" if self.passed else "FAILED"
        yield f"{self.file}: {verdict}, {self.cases} tests, {self.checks} checks"
        yield from (f"  {problem}" for problem in self.problems)
        for failure in self.failures:
            for n, line in enumerate(str(failure).splitlines()):
                yield f"  {self.file}:{failure.line}: {line}" if n == 0 else f"  {line}"


def alert_text(labels: Iterable[tuple[str, str]], annotations: Iterable[tuple[str, str]]) -> str:
    """An alert on one line."""
    return f"{_braces(labels)} annotations {_braces(annotations)}"


def sample_text(labels: Labels, value: float) -> str:
    """A sample on one line."""
    return f"{_braces(labels)} {value!r}"


def _braces(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in pairs) + "}"
