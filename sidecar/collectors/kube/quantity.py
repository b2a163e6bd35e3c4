"""Kubernetes quantities (`100m`, `1Gi`, `1e3`), read strictly: what the API server would refuse is refused here."""

from __future__ import annotations

import re
from decimal import Decimal

_SHAPE = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_LONGEST = 64  # of any quantity that makes sense
_LARGEST = Decimal(2**63)  # the API holds 64 bits
_BINARY = {f"{letter}i": Decimal(1024**n) for n, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    letter: Decimal(10) ** power for letter, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}
_FACTORS = {**_BINARY, **_DECIMAL, "": Decimal(1)}


def parse(text: object) -> float:
    """The number a quantity stands for; also a plain number, as YAML and JSON may hold one.

    Raises ValueError with what is accepted: for anything else, for what is negative, and beyond 64 bits.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"a {type(text).__name__} is no quantity")
    written = str(text)
    found = _SHAPE.fullmatch(written) if len(written) <= _LONGEST else None
    if found is None:
        raise ValueError(f"{written[:_LONGEST]!r} is no quantity (write it like 100m, 1Gi or 1e3)")
    exponent = Decimal(10) ** int(found["exponent"]) if found["exponent"] else 1
    value = Decimal(found["number"]) * _FACTORS[found["suffix"] or ""] * exponent
    if value < 0:
        raise ValueError(f"{written!r} is negative")
    if value >= _LARGEST:
        raise ValueError(f"{written!r} is more than 64 bits hold")
    return float(value)
