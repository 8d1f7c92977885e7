"""Scalar bodies as text: the one printer of every backend, given the backend's table of operators."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fibration.compiler.ir import CONDITIONS, SCALAR_ARITY, Scalar
from fibration.errors import BackendError

INFIX = frozenset({"add", "sub", "mul", "div", "neg", "lt", "le", "and", "or", "not"})


@dataclass(frozen=True)
class Language:
    """How one backend writes scalars. `operators` has one row per operator of the IR; a missing row is an error here,
    when the backend is imported, and not when a user's gate needs it.
    """

    name: str
    operators: Mapping[str, str]
    constant: Callable[[float], str]
    select: Callable[[list[str]], str]  # a choice, over several lines where it is long
    infix: frozenset[str] = INFIX  # what needs parentheses inside one another
    named_conditions: bool = True  # whether a condition that is used twice may get a name of its own
    itself: str = ""  # `x - x`, 0 or NaN, if it is to be written in another way
    compared: frozenset[str] = frozenset()  # comparisons, if a choice that is compared is to have a name of its own

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
        """The text of `body`, and before it a name and a text for every part of it that is used twice, or compared."""
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
            if s.op == "const":
                return self.constant(float(s.value or 0.0))
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
        """Whether `s` prints as an operator of its own that binds loosely."""
        return s.op == "select" and "select" in self.infix and s not in known


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
