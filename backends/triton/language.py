"""Triton's syntax for scalars, and the names that no value of a program may have.

Next to a tensor, a literal takes the tensor's dtype exactly. Alone it would be float32. So a value that is a literal,
and a choice between two literals, become tensors of the right dtype.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fibration.backends.bodies import Language, broken, call, in_parentheses

# The functions of functions.py by name, and the names of the scalar functions among them.
HELPERS: Mapping[str, str] = {
    re.findall(r"^(?:def|class) (\w+)", part, re.MULTILINE)[0]: part.strip("\n")
    for part in Path(__file__).with_name("functions.py").read_text().split("\n\n\n")[1:]
}
FUNCTIONS = [name for name, text in HELPERS.items() if f"def {name}(x):" in text]
# One row per scalar operator of the IR, except `select`. functions.py has the functions that Triton lacks.
OPERATORS: Mapping[str, str] = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-1.0 * {}",
    "stop": "{}", "log": "tl.log({})", "sqrt": "tl.sqrt({})",
    **{function: f"{function}({{}})" for function in FUNCTIONS},
    "lt": "{} < {}", "le": "{} <= {}", "and": "{} & {}", "or": "{} | {}", "not": "~{}",
    "minimum": "tl.minimum({}, {})", "maximum": "tl.maximum({}, {})", "abs": "tl.abs({})", "equal": "{} == {}",
}  # fmt: skip
SKELETON_WORDS = """
triton tl torch sys Path checked completed dtype_of_results laid_out described without_metrics b live first row now old
start origin longest reach fewest t c m at size k y f a low high own row_advantage counter tokens shape
call places fill lead work part parts programs BLOCK_R BLOCK_T BLOCK_L WIDE VECTOR REAL METRICS metrics
""".split()
PROGRAMS = ("evaluate", "objective", "gate", "gate_adjoint", "levels")
RESERVED = frozenset(
    {
        *keyword.kwlist,
        *dir(builtins),
        *SKELETON_WORDS,
        *HELPERS,
        *PROGRAMS,
        *(f"{p}_{kind}_{i}" for p in PROGRAMS for kind in ("sweep", "coarse") for i in range(1, 100)),
    }
)


def constant(value: float) -> str:
    if math.isfinite(value):
        return in_parentheses(value)
    return f'float("{value}")'


def is_literal(text: str) -> bool:
    try:
        float(text.replace('float("', "").replace('")', "").strip("()"))
    except ValueError:
        return False
    return True


def typed(text: str, precision: str) -> str:
    """A literal as a tensor; other texts unchanged."""
    return (
        f"tl.full([], {text.removeprefix('(').removesuffix(')') if text[0] == '(' else text}, {precision})"
        if is_literal(text)
        else text
    )


def language(precision: str, wide: bool) -> Language:
    """The syntax of bodies in `precision`, a dtype. `wide`: it is float64, of which a minimum is no single instruction,
    and takes more than a choice.
    """

    def where(texts: list[str]) -> str:
        condition, a, b = texts
        return call("tl.where", [condition, typed(a, precision) if is_literal(b) else a, b])

    operators = {op: v for op, v in OPERATORS.items() if not wide or op not in ("minimum", "maximum")}
    operators |= {"neg": "-{}"} if wide else {}  # else no instruction: Triton's `-x` is `0 - x`
    # a GPU would fuse `p*q - p*q` into one operation, whose result is the rounding of the product
    alone = partial(typed, precision=precision)
    return Language("triton", operators, constant, where, itself="{} * 0.0", alone=alone)


WIDE, TOKEN = language("tl.float64", True), language("REAL", False)


def fitted(text: str, indent: str) -> list[str]:
    """The lines of a statement. Lines that are too long are broken."""
    lines = text.splitlines() or [""]
    room = 118 - len(indent)
    if all(len(line) <= room for line in lines):
        return [f"{indent}{line}".rstrip() for line in lines]
    inside = _broken(lines, indent)
    assigned = re.match(r"(\w+ \+?= |return )(.*)", text, re.DOTALL)
    if assigned and not _inside_brackets(inside):  # within parentheses a line may be broken at any space
        return [f"{indent}{assigned[1]}(", *_broken(assigned[2].splitlines(), f"{indent}    "), f"{indent})"]
    return inside


def _inside_brackets(lines: list[str]) -> bool:
    """Whether lines end inside brackets, but the last."""
    open_ones = itertools.accumulate(len(re.findall(r"[(\[]", s)) - len(re.findall(r"[)\]]", s)) for s in lines)
    return all(list(open_ones)[:-1])


def _broken(lines: list[str], indent: str) -> list[str]:
    return [s for line in lines for s in broken(line, indent + line[: len(line) - len(line.lstrip())])]
