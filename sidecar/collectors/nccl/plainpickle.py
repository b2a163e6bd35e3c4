"""Reads a pickle that holds plain values only, without Python's unpickler: nothing in it can run or import anything.

The flight recorder writes numbers, texts, None, booleans, lists, tuples and dicts. Any other instruction is refused,
so a file that somebody put in its place can do no more than be refused. (The unpickler with a refusing `find_class`
would still let one instruction reserve gigabytes.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from sidecar.errors import SpikewatchError


class PickleRefused(SpikewatchError):
    """The bytes are no pickle, are cut, or hold more than plain values. `offset` counts bytes from 0."""

    def __init__(self, message: str, offset: int) -> None:
        self.offset = offset
        super().__init__(f"byte {offset}: {message}")


def loads(data: bytes) -> Any:
    """The value. Raises PickleRefused."""
    return _Reader(data).read()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> Any:
        start = 0
        try:
            while True:
                start = self._at
                code = self._data[start]
                self._at = start + 1
                if code == _STOP:
                    (value,) = self._stack
                    return value
                step = _STEPS.get(code)
                if step is None:
                    raise PickleRefused(f"instruction {code:#04x} is not for plain values", start)
                step(self)
        # what a wrong order of instructions or a cut file leads to: an empty stack, an unknown memo, a list as a key
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as e:
            raise PickleRefused(f"not a pickle of plain values ({type(e).__name__})", start) from None

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) != count:
            raise IndexError
        self._at += count
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def text(self, length: int) -> None:
        self.push(self.take(length).decode("utf-8", "replace"))

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def since_mark(self) -> list[Any]:
        at = self._marks.pop()
        part = self._stack[at:]
        del self._stack[at:]
        return part

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        part = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self.push(part)

    def append(self) -> None:
        value = self._stack.pop()
        _listed(self._stack[-1]).append(value)

    def appends(self) -> None:
        values = self.since_mark()
        _listed(self._stack[-1]).extend(values)

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _mapped(self._stack[-1])[key] = value

    def set_items(self) -> None:
        values = self.since_mark()
        target = _mapped(self._stack[-1])
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[key] = value

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self.push(self._memo[index])


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _mapped(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


_STOP = ord(".")
_Step = Callable[[_Reader], object]
_STEPS: dict[int, _Step] = {
    0x80: lambda r: r.take(1),  # PROTO
    0x95: lambda r: r.take(8),  # FRAME
    0x88: lambda r: r.push(True),
    0x89: lambda r: r.push(False),
    0x8A: lambda r: r.push(int.from_bytes(r.take(r.number("<B")), "little", signed=True)),  # LONG1
    0x8C: lambda r: r.text(r.number("<B")),  # SHORT_BINUNICODE
    0x85: lambda r: r.tuple_of(1),
    0x86: lambda r: r.tuple_of(2),
    0x87: lambda r: r.tuple_of(3),
    0x94: lambda r: r.put(len(r._memo)),  # MEMOIZE
    ord("N"): lambda r: r.push(None),
    ord("J"): lambda r: r.push(r.number("<i")),
    ord("K"): lambda r: r.push(r.number("<B")),
    ord("M"): lambda r: r.push(r.number("<H")),
    ord("G"): lambda r: r.push(r.number(">d")),
    ord("X"): lambda r: r.text(r.number("<I")),
    ord("}"): lambda r: r.push({}),
    ord("]"): lambda r: r.push([]),
    ord(")"): lambda r: r.push(()),
    ord("t"): lambda r: r.push(tuple(r.since_mark())),
    ord("("): lambda r: r.mark(),
    ord("a"): lambda r: r.append(),
    ord("e"): lambda r: r.appends(),
    ord("s"): lambda r: r.set_item(),
    ord("u"): lambda r: r.set_items(),
    ord("q"): lambda r: r.put(r.number("<B")),
    ord("r"): lambda r: r.put(r.number("<I")),
    ord("h"): lambda r: r.get(r.number("<B")),
    ord("j"): lambda r: r.get(r.number("<I")),
}
