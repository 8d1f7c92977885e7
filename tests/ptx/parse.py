"""Parses PTX text into instructions, as far as Triton's output needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from ptx.fault import Fault


@dataclass(frozen=True)
class Register:
    """`%r3`, `%tid.x`; or a name that an inline assembly declares for itself."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A whole number, or the bits of a real one."""

    bits: int


@dataclass(frozen=True)
class Symbol:
    """A label, a parameter, or the start of shared memory."""

    name: str


@dataclass(frozen=True)
class Address:
    """`[base + offset]`, in bytes."""

    base: Operand
    offset: int


@dataclass(frozen=True)
class Group:
    """`{a, b}`, or `a|b`."""

    parts: tuple[Operand, ...]


Operand = Register | Constant | Symbol | Address | Group


@dataclass(frozen=True)
class Instruction:
    """`guard` is the predicate that a thread must have, and the value it must have in it."""

    text: str
    opcode: str
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None


@dataclass(frozen=True)
class Kernel:
    """`parameters` are types by name, in order; `widths` the bits of registers by what their names begin with."""

    name: str
    target: str
    threads: int
    parameters: Mapping[str, str]
    widths: Mapping[str, int]
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]


ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)(.*?)^\{$(.*?)^\}$", re.DOTALL | re.MULTILINE)
FUNCTION = re.compile(r"^\.func (\S+?)\([^)]*\)\s*^\{$(.*?)^\}$", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"\{[^{}]*\bcall\.uni (\S+), \([^)]*\);\s*\}")
GIVEN = re.compile(r"st\.param\.\w+\s+\[param(\d+)\], (\S+);")
TAKEN = re.compile(r"ld\.param(\.\w+\s+\S+), \[\S+_param_(\d+)\]")
PARAMETER = re.compile(r"\.param \.(\w+)[^,]*?(\w+)\s*(?:,|$)")
STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
OPERANDS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
REAL = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
WHOLE = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)U?")
BESIDE = 10**6  # registers of one kind that a function has at most
WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64}


@lru_cache(maxsize=32)
def parse(text: str) -> Kernel:
    """The one kernel of a PTX file."""
    text = re.sub(r"//[^\n]*", "", text)
    found = ENTRY.search(text)
    target = re.search(r"^\.target (\w+)", text, re.MULTILINE)
    if not found or not target:
        raise Fault("this is no PTX of a kernel")
    name, parameters, head, body = found.groups()
    threads = re.search(r"\.reqntid (\d+)", head)
    if not threads:
        raise Fault(f"{name} does not say how many threads it needs")
    body = _inlined(body, dict(FUNCTION.findall(text)), count(1))
    widths = {prefix: WIDTHS[kind] for kind, prefix in re.findall(r"\.reg \.(\w+)\s+(%[a-z]+)<", body)}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in map(str.strip, body.splitlines()):
        if line.endswith(":"):
            labels[line[:-1]] = len(instructions)
            continue
        for statement in line.split(";"):
            statement = statement.strip()
            if statement and not re.match(r"\.|\}|\{ \.reg ", statement):
                instructions.append(_instruction(statement))
    return Kernel(
        name, target[1], int(threads[1]), {n: t for t, n in PARAMETER.findall(parameters)}, widths,
        tuple(instructions), labels,
    )  # fmt: skip


def _inlined(body: str, functions: Mapping[str, str], calls: Iterator[int]) -> str:
    """The text with every call replaced by the function's own, whose registers and labels get the number of the call."""

    def called(found: re.Match[str]) -> str:
        number, given = next(calls), dict(GIVEN.findall(found[0]))
        own = re.sub(r"(%[a-z]+)(\d+)\b", lambda r: f"{r[1]}{number * BESIDE + int(r[2])}", functions[found[1]])
        own = re.sub(r"(\$L\w+)", rf"\1_{number}", own)
        own = re.sub(r"\bret;", f"bra.uni $L__called_{number};", own)
        own = TAKEN.sub(lambda p: f"mov{p[1]}, {given[p[2]]}", own)
        return f"{_inlined(own, functions, calls)}\n$L__called_{number}:\n"

    return CALL.sub(called, body)


def _instruction(text: str) -> Instruction:
    found = STATEMENT.fullmatch(text)
    if not found:
        raise Fault(f"what is '{text}'?")
    negated, guard, opcode, rest = found.groups()
    operands = tuple(_operand(word) for word in OPERANDS.findall(rest))
    return Instruction(text, opcode, operands, (guard, not negated) if guard else None)


def _operand(word: str) -> Operand:
    if word[0] == "{" or "|" in word:
        parts = re.split(r"[,|]", word.strip("{}"))
        return Group(tuple(Register(p.strip()) for p in parts))
    if word[0] == "[":
        base, _, offset = word.strip("[] ").partition("+")
        return Address(_operand(base.strip()), int(offset or 0))
    if real := REAL.fullmatch(word):
        return Constant(int(real[1] or real[2], 16))
    if WHOLE.fullmatch(word):
        return Constant(int(word.removesuffix("U"), 0))
    return Register(word) if word[0] == "%" else Symbol(word)
