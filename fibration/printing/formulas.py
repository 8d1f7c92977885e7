"""Formulas as Python: with the operators and functions of `fibration`, and variables for parts that occur twice.

`Variables` has the names of a printed module: what it imports, and a variable for each object that it declares.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from typing import NamedTuple

from fibration.errors import SpecError
from fibration.language.atoms import (
    SOURCE,
    Attribute,
    Count,
    Gathered,
    Parameter,
    Place,
    Reading,
    Stratum,
    Summary,
    Total,
    resolve_places,
    reward,
    token_log_ratio,
)
from fibration.language.declared import LogProb, Policy
from fibration.language.expressions import Apply, Expression, Number, spell, write_number
from fibration.language.objectives import constant_normaliser, token_mean, trajectory_mean
from fibration.language.operators import OPERATORS
from fibration.language.statistics import Aggregate, Ordered, atoms_within, centred, standardised
from fibration.language.strata import proportional, uniform
from fibration.language.traversal import atoms, transform
from fibration.printing.layout import call, nesting, quoted

Object = Stratum | Policy | Attribute | Parameter
PUBLIC: list[str] = import_module("fibration").__all__  # by name: the package imports the rooms
STANDARD = {"Fraction": "fractions"}  # names of Python's library, by their modules
LONGEST = 60  # characters of a formula that stands as an argument; a longer one gets a variable
SAVED = 50  # characters of a part, times how often it occurs, from which on it gets a variable
DEEPEST = 8  # brackets in one another, from which on the outermost gets a variable
OFTEN = 4  # how often a count occurs before it gets a variable

# How tightly Python binds an operator. `write` has the grammar's strengths, which differ for conditions.
ATOM, POWER, PREFIX, COMPARED = 9, 7, 6, 0
STRENGTHS = {"<": 0, "<=": 0, ">": 0, ">=": 0, "or": 1, "and": 2, "+": 4, "-": 4, "*": 5, "/": 5}
JOINED = (STRENGTHS["or"], STRENGTHS["and"])
NAMES = {"abs": "absolute"}  # operators whose public function is called otherwise
# Calls whose weights are made of places that have no public name.
WEIGHTS = {made().weight: made.__name__ for made in (token_mean, trajectory_mean, uniform)}

# The variable of a part, by its outermost operator or statistic.
PARTS = {
    "+": "term", "-": "difference", "*": "product", "/": "quotient", "**": "power", "neg": "negated", "abs": "size",
    "where": "choice", "minimum": "capped", "maximum": "floored", "clip": "clipped", "sqrt": "root", "stop": "stopped",
    "total": "sum", "some": "has_some", "deviation": "spread", "before": "earlier", "after": "later",
}  # fmt: skip


class Call(NamedTuple):
    """A call of a public function; arguments are formulas, or anything else that `Formulas.value` writes."""

    function: str
    positional: tuple[object, ...]
    named: tuple[tuple[str, object], ...] = ()
    field: str = ""  # of what is returned

    @property
    def formulas(self) -> list[Expression]:
        return [v for v in (*self.positional, *(v for _, v in self.named)) if isinstance(v, Expression)]


def _call(e: Expression) -> Call | None:
    """Returns the call that makes a formula; None for an operator with a sign, and for what is written as its name."""
    if e in WEIGHTS:
        return Call(WEIGHTS[e], (), field="weight")
    if isinstance(e, Apply) and not OPERATORS[e.operator].sign:
        return Call(NAMES.get(e.operator, e.operator), e.arguments)
    if isinstance(e, Apply):
        return _of_advantages(e) or _of_weight(e)
    spelled = e.spelled()
    return None if spelled is None else Call(*spelled)


def _of_advantages(e: Apply) -> Call | None:
    """Returns the call of `centred` or `standardised` that makes a formula of rewards, if one of the two does."""
    if e.operator not in ("-", "/") or len(e.arguments) != 2:
        return None
    left, right = e.arguments
    if e.operator == "-" and isinstance(right, Aggregate) and right.of is not None:
        if reward in atoms_within(left) and centred(left, right.over, right.others, right.of) == e:
            one_out = right.others or None
            return Call(*spell("centred", left, over=right.over, leave_one_out=one_out, of=right.of))
    elif isinstance(left, Apply) and isinstance(right, Apply) and right.operator == "+":
        call = _of_advantages(left)
        if call is not None and call.function == "centred":
            formula, mean = left.arguments
            assert isinstance(mean, Aggregate)
            given, epsilon = (formula, mean.over, mean.others, mean.of), right.arguments[1]
            if standardised(*given, epsilon) == e:
                said = None if standardised(*given) == e else epsilon
                return Call(*spell("standardised", *call.positional, **dict(call.named), epsilon=said))
    return None


def _of_weight(e: Apply) -> Call | None:
    """Returns the call of `proportional` or `constant_normaliser` whose weight a quotient is, if it is one."""
    if e.operator != "/":
        return None
    above, below = e.arguments
    if isinstance(below, Apply) and below.operator == "*" and isinstance(below.arguments[0], Count):
        length = below.arguments[1]
        is_one = constant_normaliser(length).weight == e
        return Call("constant_normaliser", (length,), field="weight") if is_one else None
    if not any(isinstance(a, Gathered) and a.over == SOURCE for a in atoms(above)):
        return None

    def here(atom: Expression) -> Expression:
        return replace(atom, over=None) if isinstance(atom, Gathered) and atom.over == SOURCE else atom  # type: ignore[type-var]

    measure = transform(above, here)
    return Call("proportional", (measure,), field="weight") if proportional(measure).weight == e else None


def with_strata(e: Expression, source: Stratum, target: Stratum) -> Expression:
    """Returns a kernel's formula with its strata for `source` and `target`, but in the weights of public kernels."""
    call = _call(e)
    if call is not None and call.field:
        return e
    if isinstance(e, Apply):
        return Apply(e.operator, tuple(with_strata(a, source, target) for a in e.arguments))
    return resolve_places(e, lambda place: source if place == SOURCE else target)


def _operands(e: Expression) -> list[Expression]:
    """Returns the formulas that the text of a formula contains directly."""
    call = _call(e)
    if call is not None:
        return call.formulas
    return list(e.arguments) if isinstance(e, Apply) else []


class Variables:
    """Variables have the declared names; one that Python or `fibration` has taken gets an underscore at its end."""

    def __init__(self, hierarchy: str, objects: Iterable[Object]) -> None:
        self.hierarchy = hierarchy
        self.imports: set[str] = set()
        self.used: dict[Object, None] = {}  # in the order of their first use
        self._taken = {*PUBLIC, *STANDARD, *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
        self.result = self._declared(hierarchy)
        self._names = {value: self._declared(value.name) for value in dict.fromkeys(objects)}
        self.objects = tuple(self._names)  # all that may be declared, in the order in which it was given

    def _declared(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def of(self, value: Object) -> str:
        """Returns the variable of a declared object. The module then declares it."""
        self.used.setdefault(value)
        return self._names[value]

    def new(self, name: str) -> str:
        """Returns a variable for a formula: `name`, or with a number if it is taken."""
        numbered = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
        found = next(n for n in numbered if n not in self._taken)
        self._taken.add(found)
        return found

    def public(self, name: str) -> str:
        """Returns a name that the module then imports. Raises SpecError for a function that is not the library's."""
        if name not in PUBLIC and name not in STANDARD:
            raise SpecError(
                f"hierarchy '{self.hierarchy}' is made with '{name}(...)', which is no public name of fibration",
                required="gates, kernels, decompositions and objectives of fibration",
                remedy="write its formula: Gate(...), MarkovKernel(...), decomposition(...) or Objective(...)",
            )
        self.imports.add(name)
        return name


class Formulas:
    """Writes the formulas of one hierarchy. A part that occurs twice, or that is too long, has a variable."""

    def __init__(self, variables: Variables, rows: Stratum, roots: Iterable[Expression]) -> None:
        self.variables, self.rows = variables, rows
        self.named: dict[Expression, str] = {}
        self.statements: list[tuple[str, str]] = []  # each uses the variables of those before it
        uses: Counter[Expression] = Counter()
        stack = list(roots)
        while stack:
            e = stack.pop()
            uses[e] += 1
            if uses[e] == 1:
                stack += _operands(e)
        self.shared = {e for e, n in uses.items() if _deserves_a_variable(e, n)}

    def argument(self, e: Expression, role: str) -> str:
        """Returns a formula as an argument; one that is too long becomes the variable `role`."""
        document = self.write(e)
        if len(document) <= LONGEST or e in self.named:
            return document
        return self._assign(e, document, role)

    def write(self, e: Expression, at_least: int = 0) -> str:
        """Returns a formula, in parentheses if its operator binds less tightly than `at_least`."""
        if e in self.named:
            return self.named[e]
        document, strength = self._write(e)
        if e in self.shared or nesting(document) > DEEPEST:
            return self._assign(e, document, _name(e))
        return f"({document})" if strength < at_least else document

    def _assign(self, e: Expression, document: str, name: str) -> str:
        self.named[e] = self.variables.new(name)
        self.statements.append((self.named[e], document))
        return self.named[e]

    def value(self, value: object) -> str:
        """Returns an argument of a call: a formula, a stratum, a policy, a channel, or True and False."""
        if isinstance(value, Expression):
            return self.write(value)
        if isinstance(value, (Stratum, Policy)):
            return self.variables.of(value)
        if isinstance(value, Place):
            raise SpecError(
                f"a formula of '{self.variables.hierarchy}' counts '{value}', which has no public name",
                required="strata, and weights of token_mean(), trajectory_mean() and constant_normaliser(length)",
                remedy="name the stratum: count(token, over=batch)",
            )
        return quoted(value) if isinstance(value, str) else str(value)

    def _write(self, e: Expression) -> tuple[str, int]:
        """Returns a formula without a variable of its own, and how tightly its outermost operator binds."""
        if isinstance(e, Number):
            return self._number(e.value), ATOM if e.value >= 0 else PREFIX
        if isinstance(e, Reading):
            return self.variables.public(e.name), ATOM
        if isinstance(e, (Parameter, Attribute)):
            return self.variables.of(e), ATOM
        call = _call(e)
        if call is not None:
            return self._write_call(call), ATOM
        assert isinstance(e, Apply), e
        sign = OPERATORS[e.operator].sign
        if len(e.arguments) == 1:
            return f"{sign}{self.write(e.arguments[0], PREFIX)}", PREFIX
        left, right = e.arguments
        strength = STRENGTHS.get(e.operator, POWER)
        if isinstance(left, Number) and (isinstance(right, Number) or strength == COMPARED):
            first = self._constant(left)  # Python would compute with two numbers, and turn 0 < x round
        else:
            first = self.write(left, _left(e, strength))
        if e.operator == "**":
            space = " " * (not first.isidentifier())
            return f"{first}{space}**{space}{self.write(right)}", strength
        return f"{first} {sign} {self.write(right, PREFIX if strength in JOINED else strength + 1)}", strength

    def _write_call(self, made: Call) -> str:
        if made.function == "total" and isinstance(made.positional[0], Number):  # `total` takes no number of Python
            positional = [self._constant(made.positional[0])]
        else:
            positional = [self.value(v) for v in made.positional]
        usual = {"of": self.rows} if made.function in ("centred", "standardised") else {}
        named = {key: self.value(value) for key, value in made.named if usual.get(key) != value}
        return call(self.variables.public(made.function), *positional, **named) + f".{made.field}" * bool(made.field)

    def _number(self, value: Fraction) -> str:
        if value.denominator == 1 or Fraction(repr(float(value))) == value:
            return number(value)
        return call(self.variables.public("Fraction"), quoted(write_number(value)))

    def _constant(self, value: Number) -> str:
        """Returns a number as a formula, for which Python does not compute."""
        return f"{call(self.variables.public('Gate'), self._number(value.value))}.expression"


def number(value: Fraction | float) -> str:
    """Returns a whole number or a float as Python writes it."""
    text = repr(float(value))
    if text != "-0.0" and value == int(value) and (abs(float(value)) < 1e16 or Fraction(text) != value):
        return str(int(value))
    return re.sub(r"e([-+])0*", lambda found: f"e{found[1].strip('+')}", text)


def _left(e: Apply, strength: int) -> int:
    """Returns how tightly the left operand binds that needs no parentheses."""
    if strength in JOINED:  # `a & b | c` is clearer with parentheses
        left = e.arguments[0]
        return strength if isinstance(left, Apply) and left.operator == e.operator else PREFIX
    return {COMPARED: 1, POWER: ATOM}.get(strength, strength)


# ---------------------------------------------------------------- variables


def _deserves_a_variable(e: Expression, uses: int) -> bool:
    """Whether a part of formulas is worth a line of its own because it occurs several times."""
    if uses < 2 or not isinstance(e, (Apply, Summary, Count, Total)):
        return False
    if _ratio_name(e) is not None:
        return True
    is_count = isinstance(e, (Count, Total))
    if isinstance(e, Apply) and e.operator == "/":  # such as 1 / count(token, over=trajectory)
        is_count = all(isinstance(a, (Number, Count, Total)) for a in e.arguments)
    return len(str(e)) * uses >= SAVED and (uses >= OFTEN or not is_count)


def _name(e: Expression) -> str:
    """Returns the name of the variable of a part."""
    ratio = _ratio_name(e)
    if ratio is not None:
        return ratio
    if e.is_condition and isinstance(e, Apply):
        return "condition"
    if isinstance(e, Apply):
        return PARTS.get(e.operator, f"{e.operator}_part")
    over = getattr(e, "over", None)
    of = "" if over is None else f"_of_{over}"
    if isinstance(e, Count):
        return f"{str(e.of).removesuffix('y')}{'ies' if str(e.of).endswith('y') else 's'}{of}"
    if isinstance(e, Total):
        return f"total_of_{e.attribute}{of}"
    assert isinstance(e, (Aggregate, Ordered)), e
    return f"{'place' if isinstance(e, Ordered) and e.is_position else PARTS.get(e.word, e.word)}{of}"


def _ratio_name(e: Expression) -> str | None:
    """Returns the name of a probability, or of a ratio of two, or of its logarithm; None for anything else."""
    if isinstance(e, Apply) and e.operator in ("exp", "expm1"):
        inner = e.arguments[0]
        name = f"{inner.policy}_probability" if isinstance(inner, LogProb) else _ratio(inner)
        return name and name + "_minus_1" * (e.operator == "expm1")
    name = None if e == token_log_ratio else _ratio(e)
    return name and f"log_{name}"


def _ratio(e: Expression) -> str | None:
    """Returns the name of the ratio whose logarithm a formula is, of a token or of all tokens of an element."""
    if e == token_log_ratio:
        return "ratio"
    if isinstance(e, Apply) and e.operator == "-" and all(isinstance(a, LogProb) for a in e.arguments):
        return "_by_".join(a.policy.name for a in e.arguments if isinstance(a, LogProb))
    if isinstance(e, Aggregate) and e.kind in ("mean", "total") and e.of is None and e.over is not None:
        inner = _ratio(e.formula)
        return inner and f"{'mean_' * (e.kind == 'mean')}{inner}_of_{e.over}"
    return None
