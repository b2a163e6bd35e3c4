"""PTX text to kernels of plain instructions: as much of the language as the shipped files use."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*(?:\(([^)]*)\))?\s*(?:\.\w+\s+[\d, ]+)*\s*\{")
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[(\d+)\]")
_INSTRUCTION = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)")
_LABEL = re.compile(r"(\$\w+):\s*(.*)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]]+")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line: `@!%p1 ld.global.v4.u32 {…}, […]`."""

    guard: tuple[bool, str] | None  # negated, predicate
    op: tuple[str, ...]
    operands: tuple[str, ...]

    @property
    def type(self) -> str:
        """The last part of the opcode: `u32`."""
        return self.op[-1]

    def __str__(self) -> str:
        return f"{'.'.join(self.op)} {', '.join(self.operands)}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry point."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # (name, type)
    shared: dict[str, int]  # array → its offset
    shared_bytes: int
    code: tuple[Instruction, ...]
    labels: dict[str, int]


def parse(text: str) -> dict[str, Kernel]:
    """Every entry point of a PTX file."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    found = {}
    for entry in _ENTRY.finditer(text):
        end, depth = entry.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found[entry[1]] = _kernel(entry[1], entry[2] or "", text[entry.end() : end - 1])
    return found


def _kernel(name: str, parameters: str, body: str) -> Kernel:
    shared: dict[str, int] = {}
    labels: dict[str, int] = {}
    code: list[Instruction] = []
    size = 0
    for statement in re.sub(r"\s+", " ", body).split(";"):
        rest = statement.strip()
        while label := _LABEL.match(rest):
            labels[label[1]] = len(code)
            rest = label[2]
        if array := _SHARED.match(rest):
            align = int(array[1])
            size = (size + align - 1) // align * align
            shared[array[2]] = size
            size += int(array[3])
        elif rest and not rest.startswith("."):
            code.append(_instruction(rest))
    declared = tuple((p.split()[-1], p.split()[1].strip(".")) for p in parameters.split(",") if p.strip())
    return Kernel(name, declared, shared, size, tuple(code), labels)


def _instruction(text: str) -> Instruction:
    match = _INSTRUCTION.fullmatch(text)
    assert match, f"not an instruction: {text!r}"
    guard = (match[1] == "!", match[2]) if match[2] else None
    return Instruction(guard, tuple(match[3].split(".")), tuple(_OPERAND.findall(match[4])))
