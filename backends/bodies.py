"""Prints scalar bodies as text, for every backend, from the backend's table of operators.

A module defines a longer body once, as a function, and calls it wherever a plan computes it: the levels of a hierarchy
and both channels often share one gate.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from fibration.compiler.ir import CONDITIONS, SCALAR_ARITY, Input, Map, Names, Node, Pull, Scalar, without_macros
from fibration.compiler.optimise import size
from fibration.compiler.plan import Coarse, Plan, Sweep
from fibration.compiler.scalars import ZERO, closed_value, is_closed
from fibration.errors import BackendError

AnyNode = TypeVar("AnyNode", bound=Node)
INFIX = frozenset({"add", "sub", "mul", "div", "neg", "lt", "le", "and", "or", "not", "equal"})
IDIOMS = frozenset({"minimum", "maximum", "abs", "equal"})
SHORT = 8  # operators and operands of a body that is as clear in its place as under a name
# Names of residuals, and of derivatives by them. By the name of a gate's value: its function, and what that computes.
RESIDUALS, BACK = ("residual", "s"), ("d_residual", "d_s")
OF_GATES = {
    "gated": ("{}", "What `{}` makes of a residual."),
    "slope": ("slope_of_{}", "The slope of `{}` in its residual."),
    "back": ("back_through_{}", "The derivative of J by a residual, from that by what `{}` makes of it."),
    "is_passed": ("passed", "1 where a gate changed nothing, else 0."),
    "is_rolled_back": ("rolled_back", "1 where a gate's slope is negative and it changed something, else 0."),
    "is_flat": ("flat", "1 where a gate's slope is 0 and it changed something, else 0."),
    "is_zeroed": ("zeroed", "1 where a flat gate's value is 0, else 0."),
}


@dataclass(frozen=True)
class Function:
    """A body that a module defines once. `about`: what it computes. `coarse`: never of tokens, so always in float64."""

    name: str
    parameters: tuple[str, ...]
    about: str
    coarse: bool


Functions = Mapping[Scalar, Function]
NOTHING: Functions = {}


def functions_of(plans: Mapping[str, Plan], reserved: Collection[str]) -> Functions:
    """The functions of a module with these plans, by body: of gates, and of what several values compute.

    They are named after the gates that they belong to, or after the first value that they compute.
    """
    written: dict[Scalar, list[tuple[Map, Plan]]] = {}
    taken = set(reserved)
    for name, plan in plans.items():
        taken.update(plan.functions(name), plan.names.values(), plan.program.given.values())
        for node in _computed(plan):
            if isinstance(node, Map) and size(idiom(node.body, IDIOMS)) > SHORT:
                written.setdefault(node.body, []).append((node, plan))
    names = Names(taken)
    found = {}
    for body, places in written.items():
        word, about, of_gate = _called(*places[0])
        if of_gate or len(places) > 1:
            parameters = Names(word for word in reserved if len(word) > 1)
            given = tuple(parameters.free(without_macros(_word_of(o, places[0][1]))) for o in places[0][0].inputs)
            word = without_macros(word)
            name = names.free(f"{word}_from" if word in names.taken else word)
            coarse = all(node.stratum not in plan.program.leaves for node, plan in places)
            found[body] = Function(name, given, about, coarse)
    return found


def _computed(plan: Plan) -> Iterator[Node]:
    """The values of a plan, each as often as a stage of its own computes it."""
    for stage in plan.stages if plan.of is None else ():
        if isinstance(stage, Sweep):
            for step in stage.steps:
                yield from step.values
        elif isinstance(stage, Coarse):
            for group in stage.groups:
                yield from group.values


def _called(node: Map, plan: Plan) -> tuple[str, str, bool]:
    """The name of a value's function, what it computes, and whether it belongs to a gate."""
    names = plan.program.names
    reads = [names[o] for o in node.inputs if o in names]
    residual = next((k for k in reads if k.word in RESIDUALS and k.stratum in plan.program.gates), None)
    key = names.get(node) or next((k for k, n in plan.program.outputs.items() if n is node), None)
    if key is None and residual and any(k.word.startswith("d_") for k in reads):
        key = residual._replace(word="back")
    word = "back" if key and key.word in BACK else key.word if key else "value"
    if key and word in OF_GATES and (word not in ("gated", "back") or residual):
        gate = plan.program.gates.get(key.stratum, "gate")
        return OF_GATES[word][0].format(gate), OF_GATES[word][1].format(gate), True
    return word, f"Computes `{plan.names[node]}`, and values like it.", False


def _word_of(node: Node, plan: Plan) -> str:
    """The name of a parameter that stands for a value: without the stratum and the channel."""
    while isinstance(node, Pull):
        node = node.operand
    if isinstance(node, Input):
        own = {"count": "count", "parameter": node.word.partition(f"_{node.over}")[0]}
        return own.get(node.kind, node.kind)
    key = plan.program.names.get(node)
    return key.word if key else "x"


@dataclass(frozen=True)
class Language:
    """The scalar syntax of one backend. `operators` has one row per operator of the IR. A missing row is a BackendError
    when the backend is imported, not when a user's gate needs it. It may have rows for `IDIOMS` too.
    """

    name: str
    operators: Mapping[str, str]
    constant: Callable[[float], str]
    select: Callable[[list[str]], str]  # a choice; a long one has several lines
    infix: frozenset[str] = INFIX  # operators that need parentheses inside one another
    named_conditions: bool = True  # whether a condition that is used twice may get a name
    itself: str = ""  # how to write `x - x`, which is 0 or NaN, if not as `sub`
    alone: Callable[[str], str] = str  # how to write a literal that is an argument of `minimum` or `maximum`
    compared: frozenset[str] = frozenset()  # comparisons whose operands get a name if they are choices
    suffix: str = ""  # of the functions in this precision

    def __post_init__(self) -> None:
        wanted = SCALAR_ARITY.keys() - {"arg", "const", "select"}
        for op in sorted(wanted ^ (self.operators.keys() - IDIOMS)):
            lack = "lacks" if op in wanted else "has no use for"
            raise BackendError(
                f"the {self.name} backend {lack} the scalar operator '{op}'", required="one row for each"
            )

    @cached_property
    def idioms(self) -> frozenset[str]:
        return IDIOMS.intersection(self.operators)

    def write(
        self, body: Scalar, operands: Sequence[str], name: str, taken: Collection[str], functions: Functions = NOTHING
    ) -> tuple[list[tuple[str, str]], str]:
        """Returns a name and a text for every part that is used twice, or compared; and the text of `body`."""
        if body in functions:
            return [], f"{functions[body].name}{self.suffix}({', '.join(operands)})"
        free = (word for i in itertools.count(1) if (word := f"{name}_{i}") not in taken)
        uses: Counter[Scalar] = Counter()

        def visit(s: Scalar) -> None:
            uses[s] += 1
            if uses[s] == 1:
                for a in s.args:
                    visit(a)

        body = idiom(body, self.idioms)
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
            if s.op in ("minimum", "maximum"):
                texts = list(map(self.alone, texts))
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
            twice = uses[s] > 1 and (self.named_conditions or s.op not in (*CONDITIONS, "equal"))
            if s is not body and (twice or s in named):
                known[s] = next(free)
                before.append((known[s], written))
                return known[s]
            return written

        return before, show(body)

    def _choice(self, s: Scalar, known: Mapping[Scalar, str]) -> bool:
        """Whether `s` prints as a choice operator, which binds loosely."""
        return s.op == "select" and "select" in self.infix and s not in known


@lru_cache(1 << 14)
def idiom(s: Scalar, known: frozenset[str]) -> Scalar:
    """A body with the `known` idioms in place of what means the same, up to the sign of a zero, for numbers but NaN:
    a processor has one instruction for each, and takes two for a choice.
    """
    if is_closed(s) or not s.args:
        return s
    s = Scalar(s.op, tuple(idiom(a, known) for a in s.args), s.value)
    found = _idiom(s)
    return found if found.op in known or (found.args and found.args[-1].op in known) else s


def _idiom(s: Scalar) -> Scalar:
    if s.op == "select" and s.args[0].op in ("lt", "le"):
        (low, high), *found = s.args[0].args, *s.args[1:]
        if ZERO in (low, high):  # of x and 0: a choice between two of x, -x and 0
            x = high if low is ZERO else low
            positive, negative = found if low is ZERO else found[::-1]
            if positive is x and is_opposite(negative, x):
                return Scalar("abs", (x,))
            if positive is ZERO and is_opposite(negative, x):
                return Scalar("maximum", (negative, ZERO))
            if negative is ZERO and is_opposite(positive, x):
                return Scalar("minimum", (positive, ZERO))
        if set(found) == {low, high}:
            return Scalar("minimum" if found[0] is low else "maximum", (low, high))
    if s.op in ("and", "or") and s.args[0].op == s.args[1].op and s.args[0].op in ("lt", "le"):
        (a, b), (c, d) = (part.args for part in s.args)
        if s.op == "and" and s.args[0].op == "le" and (a, b) == (d, c):
            return Scalar("equal", (a, b))
        if s.op == "or" and a is d and is_opposite(b, c):  # x < -y or y < x
            return Scalar(s.args[0].op, (c, Scalar("abs", (a,))))
    return s


def is_opposite(a: Scalar, b: Scalar) -> bool:
    """Whether a is written as -b."""
    if a is Scalar("neg", (b,)) or b is Scalar("neg", (a,)):
        return True
    if a.op == b.op == "const":
        return a.value == -(b.value or 0.0)
    return a.op == b.op == "sub" and a.args == b.args[::-1]


def in_parentheses(value: float, suffix: str = "") -> str:
    """A finite constant, in parentheses if it has a minus sign: C reads `--0.0` as a decrement."""
    return f"({value!r}{suffix})" if math.copysign(1.0, value) < 0 else f"{value!r}{suffix}"


def broken(line: str, indent: str, width: int = 118) -> list[str]:
    """A statement as lines that are not too long. They end after commas, if that is enough."""
    lines: list[str] = []
    for text in (re.sub(r"(?<!,) ", "\0", line.strip()), line.strip()):
        lines = textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=f"{indent}    ", break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        if all(len(line) <= width for line in lines):
            break
    return [line.replace("\0", " ") for line in lines]


def ternary(texts: list[str], width: int = 90) -> str:
    """`c ? a : b`."""
    condition, a, b = texts
    line = f"{condition} ? {a} : {b}"
    if len(line) <= width:
        return line
    return f"{condition}\n" + textwrap.indent(f"? {a}\n: {b}", "    ")


def call(function: str, texts: list[str], width: int = 100) -> str:
    """`where(c, a, b)`."""
    line = f"{function}({', '.join(texts)})"
    if len(line) <= width:
        return line
    return f"{function}(\n" + "".join(textwrap.indent(t, "    ") + ",\n" for t in texts) + ")"
