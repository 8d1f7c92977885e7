"""The table of scalar operators: one row each, read by the grammar, the laws, the compiler and the printers.

Everything else about operators is derived from this table: the words of the grammar, the scalars of the IR with their
values and derivatives, the domains of formulas, and the facts that proofs and counterexamples use. A field that would
make a proof or a gradient wrong if it were forgotten has no default. `sympy_bridge.py` has its own row for each
operator, the interpreter and every backend for each operator of the IR, and fails at import without it.

Derivatives, domains and expansions are written in the language itself. The expansion of a sugar operator is its only
meaning. It also fixes the derivative at a breakpoint: the branch that holds *at* the point is differentiated, so
`clip` passes at its bounds.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fibration.language import exact
from fibration.language.expressions import SYNTAX, Apply, Expression, Number, Operand, Syntax, apply, as_expression

INFINITY = math.inf
Signs = frozenset[int]
ANY: Signs = frozenset({-1, 0, 1})
ZERO: Signs = frozenset({0})
POSITIVE: Signs = frozenset({1})
NOT_NEGATIVE: Signs = frozenset({0, 1})
NOT_ZERO: Signs = frozenset({-1, 1})
Needs = tuple[tuple[Expression, Signs], ...]


@dataclass(frozen=True, repr=False)
class Argument(Expression):
    """An argument of an operator, by its position, in the formulas of the operator's row. The value stands last."""

    position: int

    def text(self) -> str:
        return f"argument {self.position}"


ARGUMENTS = (Argument(0), Argument(1), Argument(2))
RESULT = Argument(-1)


def always(arguments: Iterable[bool]) -> bool:
    """For an operator whose value is above 0 for all arguments."""
    return True


def everywhere(*arguments: Expression) -> Needs:
    """The domain of an operator that has a value for all arguments."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Operator(Syntax):
    """The fields of every operator, in addition to its syntax."""

    # For proofs, where the operator stays a sympy function: its signs, from a function that returns the signs of any
    # value, and the argument.
    signs: Callable[[Callable[[Any], Signs], Any], Signs] = lambda signs, x: ANY
    # Whether its value is certainly above 0, from whether each argument is.
    positive: Callable[[Iterable[bool]], bool] = lambda arguments: False
    latex: str | Callable[..., Expression]  # with a `%s` for every argument, or a function for the formula to print


@dataclass(frozen=True, kw_only=True)
class Sugar(Operator):
    """An operator that stands for a formula in operators that are no sugar."""

    expand: Callable[..., Expression]

    @functools.cached_property
    def expansion(self) -> Expression:
        """The formula, of `ARGUMENTS`."""
        return self.expand(*ARGUMENTS[: self.arity])


@dataclass(frozen=True, kw_only=True)
class Valued(Operator):
    """An operator with a value of its own."""

    domain: Callable[..., Needs]  # the signs that formulas of its arguments must have for it to have a value

    @functools.cached_property
    def needs(self) -> Needs:
        """The domain, in formulas of `ARGUMENTS`."""
        return self.domain(*ARGUMENTS[: self.arity])


@dataclass(frozen=True, kw_only=True)
class Composed(Valued):
    """An operator that numbers and the IR express with primitives."""

    lowered: Callable[..., Expression]

    @functools.cached_property
    def lowering(self) -> Callable[[Expression], Expression]:
        """Returns the operator in primitives, of its first argument and a second one: an exponent is a number."""
        return functools.lru_cache(64)(lambda second: self.lowered(ARGUMENTS[0], second))


@dataclass(frozen=True, kw_only=True)
class Primitive(Valued):
    """An operator that the IR has too."""

    ir: str
    exact: Callable[..., Any]  # on Fractions
    rounded: bool  # whether the exact value is rounded to fifty digits
    # The partial derivatives, from the arguments and the value. None for a condition, which has no derivative, and for
    # `where`, whose derivative is that of the branch taken.
    slopes: Callable[..., tuple[Operand, ...]] | None
    cost: int = 1  # vector instructions, roughly
    # Of one argument: its limits at minus and plus infinity (None: it has none), where a rounded value is exact after
    # all, and whether it computes an exponential, which has too many digits far from 0.
    limits: tuple[float | None, float | None] = (None, None)
    rational_at: Callable[[Any], bool] = lambda x: False
    is_exponential: bool = False

    @functools.cached_property
    def derivatives(self) -> tuple[Expression, ...]:
        """The partial derivatives, of `ARGUMENTS` and `RESULT`."""
        assert self.slopes is not None
        return tuple(as_expression(s) for s in self.slopes(*ARGUMENTS[: self.arity], RESULT))


def _is(number: int) -> Callable[[Any], bool]:
    return lambda x: x == number


def _whole(exponent: Expression) -> int:
    assert isinstance(exponent, Number)
    return int(exponent.value)


def _one_plus(x: Expression) -> Expression:
    return 1 - x.arguments[0] if isinstance(x, Apply) and x.operator == "neg" else 1 + x


def _compared(ir: str, **row: Any) -> Primitive:
    return Primitive(arity=2, is_condition=True, binding=4, ir=ir, rounded=False, domain=everywhere, slopes=None, **row)


def _joined(ir: str, **row: Any) -> Primitive:
    return Primitive(
        arity=2, is_condition=True, conditions=frozenset({0, 1}), ir=ir, rounded=False, domain=everywhere, slopes=None,
        **row,
    )  # fmt: skip


def _swapped(of: Callable[[Any, Any], Expression], **row: Any) -> Composed:
    return Composed(arity=2, is_condition=True, binding=4, domain=everywhere, lowered=lambda a, b: of(b, a), **row)


OPERATORS: dict[str, Sugar | Composed | Primitive] = {
    "+": Primitive(
        arity=2, sign="+", binding=5, latex="%s + %s", ir="add", exact=operator.add, rounded=False, domain=everywhere,
        slopes=lambda a, b, y: (1, 1),
    ),
    "-": Primitive(
        arity=2, sign="-", binding=5, latex="%s - %s", ir="sub", exact=operator.sub, rounded=False, domain=everywhere,
        slopes=lambda a, b, y: (1, -1),
    ),
    "*": Primitive(
        arity=2, sign="*", binding=6, latex=r"%s\, %s", ir="mul", exact=operator.mul, rounded=False, domain=everywhere,
        slopes=lambda a, b, y: (b, a), positive=all,
    ),
    "/": Primitive(
        arity=2, sign="/", binding=6, latex=r"\frac{%s}{%s}", ir="div", cost=5, exact=exact.divide, rounded=False,
        domain=lambda a, b: ((b, NOT_ZERO),), slopes=lambda a, b, y: (1 / b, -(y / b)), positive=all,
    ),
    "**": Composed(
        arity=2, sign="**", binding=8, latex="%s^{%s}", domain=everywhere,
        lowered=lambda a, n: functools.reduce(operator.mul, [a] * _whole(n)), positive=all,
    ),
    "neg": Primitive(
        arity=1, sign="-", binding=7, latex="-%s", ir="neg", exact=operator.neg, rounded=False, domain=everywhere,
        slopes=lambda a, y: (-1,), limits=(INFINITY, -INFINITY),
    ),
    "<": _compared("lt", sign="<", latex="%s < %s", exact=operator.lt),
    "<=": _compared("le", sign="<=", latex=r"%s \le %s", exact=operator.le),
    ">": _swapped(operator.lt, sign=">", latex="%s > %s"),
    ">=": _swapped(operator.le, sign=">=", latex=r"%s \ge %s"),
    "and": _joined("and", sign="&", binding=2, latex=r"%s \land %s", exact=lambda a, b: a and b),
    "or": _joined("or", sign="|", binding=1, latex=r"%s \lor %s", exact=lambda a, b: a or b),
    "not": Primitive(
        arity=1, is_condition=True, conditions=frozenset({0}), sign="~", binding=3, latex=r"\lnot\left(%s\right)",
        ir="not", exact=operator.not_, rounded=False, domain=everywhere, slopes=None,
    ),
    "where": Primitive(
        arity=3, conditions=frozenset({0}), latex=r"\begin{cases} %s \end{cases}", ir="select",
        exact=lambda c, a, b: a if c else b, rounded=False, domain=everywhere, slopes=None,
    ),
    "stop": Primitive(
        arity=1, latex=r"\operatorname{stop}\left(%s\right)", ir="stop", cost=0, signs=lambda signs, x: signs(x),
        exact=lambda a: a, rounded=False, domain=everywhere, slopes=lambda a, y: (0,),
    ),
    "minimum": Sugar(arity=2, latex=r"\min\left(%s, %s\right)", expand=lambda a, b: where(a <= b, a, b), positive=all),
    "maximum": Sugar(arity=2, latex=r"\max\left(%s, %s\right)", expand=lambda a, b: where(a >= b, a, b), positive=all),
    "clip": Sugar(
        arity=3, latex=r"\operatorname{clip}\left(%s, %s, %s\right)",
        expand=lambda a, low, high: where(a < low, low, where(a > high, high, a)),
    ),
    "abs": Sugar(
        arity=1, latex=r"\left\lvert %s \right\rvert", expand=lambda a: where(a >= 0, a, -a),
        signs=lambda signs, x: frozenset(abs(s) for s in signs(x)),
    ),
    "sign": Sugar(
        arity=1, latex=r"\operatorname{sign}\left(%s\right)", expand=lambda a: where(a > 0, 1, where(a < 0, -1, 0)),
    ),
    "exp": Primitive(
        arity=1, latex=r"\exp\left(%s\right)", ir="exp", cost=16, signs=lambda signs, x: POSITIVE,
        exact=exact.transcendental("exp"), rounded=True, domain=everywhere, slopes=lambda x, y: (y,), positive=always,
        limits=(0, INFINITY), rational_at=_is(0), is_exponential=True,
    ),
    "expm1": Primitive(
        arity=1, latex=lambda x: exp(x) - 1, ir="expm1", cost=20, exact=exact.transcendental("expm1"), rounded=True,
        domain=everywhere, slopes=lambda x, y: (exp(x),), positive=all, limits=(-1, INFINITY), rational_at=_is(0),
        is_exponential=True,
    ),
    "log": Primitive(
        arity=1, latex=r"\log\left(%s\right)", ir="log", cost=30,
        signs=lambda signs, x: signs(x - 1) if signs(x) == POSITIVE else ANY, exact=exact.transcendental("log"),
        rounded=True, domain=lambda x: ((x, POSITIVE),), slopes=lambda x, y: (1 / x,), limits=(None, INFINITY),
        rational_at=_is(1),
    ),
    "log1p": Primitive(
        arity=1, latex=lambda x: log(_one_plus(x)), ir="log1p", cost=35, exact=exact.transcendental("log1p"),
        rounded=True, domain=lambda x: ((1 + x, POSITIVE),), slopes=lambda x, y: (1 / (1 + x),), positive=all,
        limits=(None, INFINITY), rational_at=_is(0),
    ),
    "tanh": Primitive(
        arity=1, latex=r"\tanh\left(%s\right)", ir="tanh", cost=25, signs=lambda signs, x: signs(x),
        exact=exact.transcendental("tanh"), rounded=True, domain=everywhere, slopes=lambda x, y: (1 - y * y,),
        positive=all, limits=(-1, 1), rational_at=_is(0),
    ),
    "sigmoid": Primitive(
        arity=1, latex=r"\operatorname{sigmoid}\left(%s\right)", ir="sigmoid", cost=20, exact=exact.sigmoid,
        rounded=True, domain=everywhere, slopes=lambda x, y: (y * (1 - y),), positive=always, limits=(0, 1),
        rational_at=_is(0), is_exponential=True,
    ),
    "sqrt": Primitive(
        arity=1, latex=r"\sqrt{%s}", ir="sqrt", cost=8, exact=exact.sqrt, rounded=True,
        domain=lambda x: ((x, NOT_NEGATIVE),), slopes=lambda x, y: (1 / (2 * y),), positive=all,
        limits=(None, INFINITY), rational_at=lambda x: exact.root(x) is not None,
    ),
    "softplus": Primitive(
        arity=1, latex=r"\operatorname{softplus}\left(%s\right)", ir="softplus", cost=55,
        exact=lambda x: exact.transcendental("log1p")(exact.transcendental("exp")(x)), rounded=True, domain=everywhere,
        slopes=lambda x, y: (sigmoid(x),), positive=always, limits=(0, INFINITY), is_exponential=True,
    ),
    "atan": Primitive(
        arity=1, latex=r"\arctan\left(%s\right)", ir="atan", cost=25, signs=lambda signs, x: signs(x),
        exact=exact.transcendental("atan"), rounded=True, domain=everywhere, slopes=lambda x, y: (1 / (1 + x * x),),
        positive=all, rational_at=_is(0),
    ),
}  # fmt: skip
SYNTAX.update(OPERATORS)
PRIMITIVES: dict[str, Primitive] = {row.ir: row for row in OPERATORS.values() if isinstance(row, Primitive)}
COMPARISONS = tuple(name for name, row in OPERATORS.items() if row.is_condition and not row.conditions)
CALLED = tuple(name for name, row in OPERATORS.items() if not row.sign)  # words of the grammar


def where(condition: Expression, value: Operand, otherwise: Operand) -> Expression:
    """Returns `value` where `condition` holds, `otherwise` elsewhere."""
    return apply("where", condition, value, otherwise)


def minimum(a: Operand, b: Operand) -> Expression:
    """Returns the smaller of two. At a tie the derivative is that of `a`."""
    return apply("minimum", a, b)


def maximum(a: Operand, b: Operand) -> Expression:
    """Returns the larger of two. At a tie the derivative is that of `a`."""
    return apply("maximum", a, b)


def clip(a: Operand, low: Operand, high: Operand) -> Expression:
    """Returns `a` limited to `[low, high]`. The derivative is 1 on the closed interval, 0 outside."""
    return apply("clip", a, low, high)


def absolute(a: Operand) -> Expression:
    """Returns `|a|`. The derivative at 0 is +1."""
    return apply("abs", a)


def stop(a: Operand) -> Expression:
    """Returns `a`, without a gradient."""
    return apply("stop", a)


def sign(a: Operand) -> Expression:
    """Returns the sign of `a`: -1, 0 or 1. The derivative is 0."""
    return apply("sign", a)


def exp(a: Operand) -> Expression:
    """Returns `e` to the power of `a`."""
    return apply("exp", a)


def expm1(a: Operand) -> Expression:
    """Returns `exp(a) - 1`, accurate for small `a`."""
    return apply("expm1", a)


def log(a: Operand) -> Expression:
    """Returns the natural logarithm."""
    return apply("log", a)


def log1p(a: Operand) -> Expression:
    """Returns `log(1 + a)`, accurate for small `a`."""
    return apply("log1p", a)


def tanh(a: Operand) -> Expression:
    """Returns the hyperbolic tangent, between -1 and 1."""
    return apply("tanh", a)


def sigmoid(a: Operand) -> Expression:
    """Returns `1/(1 + exp(-a))`, between 0 and 1."""
    return apply("sigmoid", a)


def sqrt(a: Operand) -> Expression:
    """Returns the square root."""
    return apply("sqrt", a)


def softplus(a: Operand) -> Expression:
    """Returns `log(1 + exp(a))`, also where `exp(a)` overflows."""
    return apply("softplus", a)


def atan(a: Operand) -> Expression:
    """Returns the angle between -π/2 and π/2 whose tangent is `a`."""
    return apply("atan", a)
