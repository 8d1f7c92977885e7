"""Prints scalar bodies as text, for every backend, from the backend's table of operators."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fibration.compiler.ir import CONDITIONS, SCALAR_ARITY, Scalar
from fibration.compiler.scalars import closed_value, is_closed
from fibration.errors import BackendError

INFIX = frozenset({"add", "sub", "mul", "div", "neg", "lt", "le", "and", "or", "not"})


@dataclass(frozen=True)
class Language:
    """The scalar syntax of one backend. `operators` has one row per operator of the IR. A missing row is a BackendError
    when the backend is imported, not when a user's gate needs it.
    """

    name: str
    operators: Mapping[str, str]
    constant: Callable[[float], str]
    select: Callable[[list[str]], str]  # a choice; a long one has several lines
    infix: frozenset[str] = INFIX  # operators that need parentheses inside one another
    named_conditions: bool = True  # whether a condition that is used twice may get a name
    itself: str = ""  # how to write `x - x`, which is 0 or NaN, if not as `sub`
    compared: frozenset[str] = frozenset()  # comparisons whose operands get a name if they are choices

    def __post_init__(self) -> None:
        wanted = SCALAR_ARITY.keys() - {"arg", "const", "select"}
        for op in sorted(wanted ^ self.operators.keys()):
            lack = "lacks" if op in wanted else "has no use for"
            raise BackendError(
                f"the {self.name} backend {lack} the scalar operator '{op}'", required="one row for each"
            )

    def write(
        self, body: Scalar, operands: list[str], name: str, taken: Collection[str]
    ) -> tuple[list[tuple[str, str]], str]:
        """Returns a name and a text for every part that is used twice, or compared; and the text of `body`."""
        free = (word for i in itertools.count(1) if (word := f"{name}_{i}") not in taken)
        uses: Counter[Scalar] = Counter()

        def visit(s: Scalar) -> None:
            uses[s] += 1
            if uses[s] == 1:
                for a in s.args:
                    visit(a)

        visit(body)
        named = {a for s in uses if s.op in self.compared for a in s.args if a.op == "select"}
        before: list[tuple[str, str]] = []
        known: dict[Scalar, str] = {}

        def show(s: Scalar) -> str:
            if s in known:
                return known[s]
            if s.op == "arg":
                return operands[int(s.value or 0)]
            if s.op not in CONDITIONS and is_closed(s):  # in Python `0.0 / 0.0` is an error, not NaN
                return self.constant(closed_value(s))
            texts = [show(a) for a in s.args]
            if s.op == "select":
                pairs = zip(s.args, texts, strict=True)
                written = self.select([f"({t})" if self._choice(a, known) else t for a, t in pairs])
            else:
                inside = s.op in self.infix
                texts = [
                    f"({t})" if inside and a not in known and (a.op in self.infix or self._choice(a, known)) else t
                    for a, t in zip(s.args, texts, strict=True)
                ]
                same = s.op == "sub" and s.args[0] is s.args[1]
                written = (self.itself if same and self.itself else self.operators[s.op]).format(*texts)
            twice = uses[s] > 1 and (self.named_conditions or s.op not in CONDITIONS)
            if s is not body and (twice or s in named):
                known[s] = next(free)
                before.append((known[s], written))
                return known[s]
            return written

        return before, show(body)

    def _choice(self, s: Scalar, known: Mapping[Scalar, str]) -> bool:
        """Whether `s` prints as a choice operator, which binds loosely."""
        return s.op == "select" and "select" in self.infix and s not in known


def in_parentheses(value: float, suffix: str = "") -> str:
    """A finite constant, in parentheses if it has a minus sign: C reads `--0.0` as a decrement."""
    return f"({value!r}{suffix})" if math.copysign(1.0, value) < 0 else f"{value!r}{suffix}"


def ternary(texts: list[str], width: int = 90) -> str:
    """`c ? a : b`."""
    condition, a, b = texts
    line = f"{condition} ? {a} : {b}"
    if len(line) <= width:
        return line
    return f"{condition}\n" + textwrap.indent(f"? {a}\n: {b}", "    ")


def call(function: str, texts: list[str], width: int = 80) -> str:
    """`where(c, a, b)`."""
    line = f"{function}({', '.join(texts)})"
    if len(line) <= width:
        return line
    return f"{function}(\n" + "".join(textwrap.indent(t, "    ") + ",\n" for t in texts) + ")"
