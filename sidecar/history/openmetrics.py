"""OpenMetrics text with timestamps as a source: what `promtool tsdb dump-openmetrics` writes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sidecar.errors import ConfigError, Problem
from sidecar.history.sorting import Sorter
from sidecar.history.source import Row
from sidecar.model import Labels, labels_of

_EXEMPLAR = re.compile(r' # \{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\} \S+(?: \S+)?$')
_TAIL = re.compile(r"(?P<value>[^ ]+)(?: (?P<time>[^ ]+))?$")
_FAR_MS = 1 << 53  # beyond this, milliseconds and their float are no longer the same


class OpenMetricsHistory:
    """The samples of one file, brought into order of time. Use it as a context manager: it may hold temporary files."""

    def __init__(self, path: Path, metrics: Collection[str] | None = None, run: int = 1_000_000) -> None:
        """Reads the file. `metrics` None keeps all of them; `run` is how many samples are sorted in memory at once.

        Raises ConfigError with the line of the first thing that is no OpenMetrics, or has no timestamp.
        """
        self._sorter = Sorter(run)
        self._labels: list[Labels] = []
        self._wanted = None if metrics is None else frozenset(metrics)
        try:
            with path.open(encoding="utf-8", newline="\n") as file:
                self._read(file, str(path))
            self._sorter.finish()
        except OSError as e:
            self.close()
            raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {e.strerror}")]) from None
        except UnicodeDecodeError as e:
            self.close()
            raise ConfigError([Problem(str(path), 0, 0, f"not UTF-8: {e.reason}")]) from None
        except ConfigError:
            self.close()
            raise

    def __enter__(self) -> OpenMetricsHistory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Deletes temporary files."""
        self._sorter.close()

    def extent(self) -> tuple[int, int] | None:
        """Of the samples kept; None where there is none."""
        first, last = self._sorter.first_ms, self._sorter.last_ms
        return None if first is None or last is None else (first, last)

    def rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        """The samples in [start, end], in order of time."""
        for t_ms, number, value in self._sorter:
            if t_ms > end_ms:
                return
            if t_ms >= start_ms:
                yield t_ms, self._labels[number], value

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, file: IO[str], name: str) -> None:
        heads: dict[str, int | None] = {}  # of the metric being read: text up to the value → number of the series
        known: dict[Labels, int] = {}
        metric = ""
        ended = False
        for number, line in enumerate(_lines(file), 1):
            try:
                if ended:
                    raise ValueError("text after # EOF")
                if line.startswith("#"):
                    ended = line == "# EOF"
                    continue
                head, value, t_ms = _split(line)
                if head not in heads:
                    if self._unwanted(head):
                        continue
                    labels = _series(head)
                    if dict(labels)["__name__"] != metric:
                        # A dump goes metric by metric: forgetting the heads of others bounds the memory.
                        heads.clear()
                        metric = dict(labels)["__name__"]
                    heads[head] = self._number(labels, known)
                series = heads[head]
                if series is not None:
                    self._sorter.add(t_ms, series, value)
            except ValueError as e:
                raise ConfigError([Problem(name, number, 1, str(e) or f"not OpenMetrics: {line[:200]}")]) from None
        if not ended:
            raise ConfigError([Problem(name, 0, 0, "no `# EOF` at the end: the file is not complete")])

    def _unwanted(self, head: str) -> bool:
        """Whether the name, where it stands first, says that nobody asked for it: most of a dump is like this."""
        name = head.partition("{")[0]
        return bool(name) and self._wanted is not None and name not in self._wanted

    def _number(self, labels: Labels, known: dict[Labels, int]) -> int | None:
        if self._wanted is not None and dict(labels)["__name__"] not in self._wanted:
            return None
        if labels not in known:
            known[labels] = len(self._labels)
            self._labels.append(labels)
        return known[labels]


def _lines(file: Iterable[str]) -> Iterator[str]:
    return (line.removesuffix("\n") for line in file)


def _split(line: str) -> tuple[str, float, int]:
    """(text of the series, value, time in milliseconds). Raises ValueError."""
    if " # {" in line:
        line = _EXEMPLAR.sub("", line)
    end = line.rfind("} ") + 1 or line.find(" ")
    match = _TAIL.match(line, end + 1)
    if end <= 0 or match is None:
        raise ValueError(f"not OpenMetrics: {line[:200]}")
    if "{" in line[:end] and line[end - 1] != "}":
        raise ValueError(f"labels without a closing brace: {line[:200]}")
    value = _number(match["value"], "a number")
    if match["time"] is None:
        raise ValueError("a sample without a timestamp: it cannot be told when it was")
    t_ms = _number(match["time"], "a time in seconds") * 1000
    if not abs(t_ms) < _FAR_MS:
        raise ValueError(f"not a time in seconds: {match['time']}")
    return line[:end], value, round(t_ms)


def _number(text: str, what: str) -> float:
    try:
        if "_" not in text:  # which Python would take
            return float(text)
    except ValueError:
        pass  # told below
    raise ValueError(f"not {what}: {text[:80]}")


def _series(head: str) -> Labels:
    """The labels of a series as text. Raises ValueError.

    Alone and without its metadata, for a dump has none and may come back to a metric later, which the parser would
    not take. A name is all that is wanted of it here.
    """
    (family,) = text_string_to_metric_families(f"{head} 0\n# EOF\n")
    (sample,) = family.samples
    return labels_of({**sample.labels, "__name__": sample.name})
