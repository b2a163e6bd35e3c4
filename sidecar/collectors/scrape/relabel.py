"""Prometheus's relabelling: what a scrape keeps, drops and renames. Semantics of Prometheus 3.5.

Label names are those of its `legacy` validation scheme: letters, digits and underscores.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import re2
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Action = Literal[
    "replace",
    "keep",
    "drop",
    "keepequal",
    "dropequal",
    "hashmod",
    "labelmap",
    "labeldrop",
    "labelkeep",
    "lowercase",
    "uppercase",
]

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# $1, ${1}, $name, ${name}, $$; a $ before anything else stands for itself
_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>\w+)\}|(?P<plain>\w+))", re.A)
_TARGETED = ("replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal")


class RelabelConfig(BaseModel):
    """One entry of `relabel_configs` or `metric_relabel_configs`, with Prometheus's names and defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    target_label: str = ""
    regex: str = "(.*)"
    modulus: int = Field(0, ge=0)
    replacement: str = "$1"
    action: Action = "replace"

    @field_validator("action", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("regex", "replacement", mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _complete(self) -> RelabelConfig:
        try:
            self._pattern  # noqa: B018 - compiled once, here
        except re2.error as e:
            reason = e.args[0] if e.args else "bad pattern"
            text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            raise ValueError(f"bad regular expression {self.regex!r}: {text}") from None
        if self.action in _TARGETED and not self.target_label:
            raise ValueError(f"action {self.action} needs a target_label")
        if self.action == "hashmod" and not self.modulus:
            raise ValueError("action hashmod needs a modulus of at least 1")
        if self.action in ("lowercase", "uppercase", "hashmod", "keepequal", "dropequal") and not LABEL_NAME.fullmatch(
            self.target_label
        ):
            raise ValueError(f"{self.target_label!r} is no label name")
        extra = self.model_fields_set - {"action", "regex"}
        if self.action in ("labeldrop", "labelkeep") and extra:
            raise ValueError(f"action {self.action} takes a regex only, no {', '.join(sorted(extra))}")
        extra = self.model_fields_set - {"action", "source_labels", "target_label"}
        if self.action in ("keepequal", "dropequal") and extra:
            raise ValueError(f"action {self.action} takes source_labels and target_label only")
        return self

    @cached_property
    def _pattern(self) -> Any:
        options = re2.Options()
        options.log_errors = False
        return re2.compile(f"^(?s:{self.regex})$", options)


def relabel(labels: Mapping[str, str], configs: Sequence[RelabelConfig]) -> dict[str, str] | None:
    """The labels after all steps, without empty ones; None where a step drops them."""
    current = {name: value for name, value in labels.items() if value}
    for config in configs:
        if not _STEPS[config.action](config, current):
            return None
    return {name: value for name, value in current.items() if value}


def _value(config: RelabelConfig, labels: Mapping[str, str]) -> str:
    return config.separator.join(labels.get(name, "") for name in config.source_labels)


def _match(config: RelabelConfig, text: str) -> Any:
    return config._pattern.search(text)


def _set(labels: dict[str, str], name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _replace(config: RelabelConfig, labels: dict[str, str]) -> bool:
    match = _match(config, _value(config, labels))
    if match is not None:
        target = _expand(match, config.target_label)
        if LABEL_NAME.fullmatch(target):
            _set(labels, target, _expand(match, config.replacement))
    return True


def _hashmod(config: RelabelConfig, labels: dict[str, str]) -> bool:
    digest = hashlib.md5(_value(config, labels).encode(), usedforsecurity=False).digest()
    labels[config.target_label] = str(int.from_bytes(digest[8:], "big") % config.modulus)
    return True


def _labelmap(config: RelabelConfig, labels: dict[str, str]) -> bool:
    for name, value in list(labels.items()):
        match = _match(config, name)
        if match is not None:
            _set(labels, _expand(match, config.replacement), value)
    return True


def _by_name(keep: bool) -> Callable[[RelabelConfig, dict[str, str]], bool]:
    def step(config: RelabelConfig, labels: dict[str, str]) -> bool:
        for name in list(labels):
            if (_match(config, name) is not None) != keep:
                del labels[name]
        return True

    return step


def _cased(change: Callable[[str], str]) -> Callable[[RelabelConfig, dict[str, str]], bool]:
    def step(config: RelabelConfig, labels: dict[str, str]) -> bool:
        _set(labels, config.target_label, change(_value(config, labels)))
        return True

    return step


def _expand(match: Any, template: str) -> str:
    """Go's expansion: a group that is not there is empty, and a name is as long as it can be (`$1x` is group `1x`)."""

    def one(reference: re.Match[str]) -> str:
        if reference["dollar"]:
            return "$"
        name = reference["braced"] or reference["plain"]
        try:
            return str(match.group(int(name) if name.isdigit() else name) or "")
        except (IndexError, KeyError, re2.error):
            return ""

    return _REFERENCE.sub(one, template)


_STEPS: dict[Action, Callable[[RelabelConfig, dict[str, str]], bool]] = {
    "replace": _replace,
    "keep": lambda config, labels: _match(config, _value(config, labels)) is not None,
    "drop": lambda config, labels: _match(config, _value(config, labels)) is None,
    "keepequal": lambda config, labels: _value(config, labels) == labels.get(config.target_label, ""),
    "dropequal": lambda config, labels: _value(config, labels) != labels.get(config.target_label, ""),
    "hashmod": _hashmod,
    "labelmap": _labelmap,
    "labeldrop": _by_name(keep=False),
    "labelkeep": _by_name(keep=True),
    "lowercase": _cased(str.lower),
    "uppercase": _cased(str.upper),
}
