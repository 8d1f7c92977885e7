"""A function as a declaration for batches of all sizes.

A coefficient is one formula per token on two batches of other sizes. Sums over the tokens of a row, a group or the
batch become statistics, cases become `where`, and numbers that differ between the batches become counts. The
declaration is kept if its coefficients are proved equal to the function's on the audit's own structures, which are of
further sizes.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fibration.auditing import formula as f
from fibration.auditing.batch import UNDER, Batch, drawn
from fibration.auditing.counts import NORMALISERS, Powers, Weight, multiples, products, value_of
from fibration.auditing.formula import SIMPLE, Atom, Formula, Untraced, atom, number, short, single
from fibration.auditing.function import Function, file_of, name_of, where
from fibration.auditing.prove import Case, decided, equal, same
from fibration.auditing.reference import ARGUMENT_OF, Reference
from fibration.auditing.seen import EXACT, SPREADS, WIDE, Lack, Place, Seen, Tree
from fibration.errors import AuditError, FibrationError
from fibration.language import operators
from fibration.language.atoms import BATCH, Count, Stratum, advantage, count, residual, reward, token_log_ratio
from fibration.language.declared import log_prob, policies
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import Gate, log_ratio, ratio_deviation, zero_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.language.statistics import Aggregate, after, before, deviation, largest, mean, total
from fibration.language.strata import Fibration, uniform
from fibration.language.traversal import transform

STRUCTURES = (
    ((5, 1, 2, 1, 2), (0, 0, 0, 1, 1), ((0, 2),)),
    ((6, 1, 2, 5, 1, 2, 1, 1, 1), (0, 0, 0, 1, 1, 1, 1, 2, 2), ((0, 3), (3, 2))),
)  # rows, their groups, and the tokens whose formulas are read. No two products of few counts are alike on these. Two
# tokens lie before and after each, and the other rows of its group have other lengths: no sum is taken for another.


class View(NamedTuple):
    """How a function is read. `without_own`: sums over rows leave out the own one. `of_policies`: advantages that come
    of rewards read log-probs of frozen policies too.
    """

    form: str
    without_own: bool
    of_policies: bool


LARGE = tuple(1 + k * k % 61 for k in range(1, 41))  # rows on which numbers are compared
FORMS = ("tokens", "rows", "gradients")  # a value that is a sum over tokens, or over rows of a mean log ratio; no value
OF_ROWS = "one ratio per row: what single tokens do beyond their mean is dropped"
FROZEN = {"old_log_probs", "ref_log_probs", "rollout_log_probs"}
GIVEN_UP = "read from a function: it has the function's gradient, and no value"
DIVIDED = "read from a function: it scales rewards with a deviation, which an answer's own reward is part of"
IN_GATE = "total(1,"  # a count of tokens that is no part of the weight
DRAWS = 40  # of rewards, for advantages of both signs
DIGITS = 12  # characters of a number that may be simpler in other words
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-9, 1e-4)  # that functions add to a divisor
token, row, group, batch = (Stratum(name) for name in ("token", "trajectory", "prompt_group", BATCH))
COUNTED: dict[str, Expression] = {
    "row": count(token, over=row), "batch": count(token, over=batch), "rows": count(row, over=batch),
    "rows of the group": count(row, over=group), "group": count(token, over=group), "groups": count(group, over=batch),
}  # fmt: skip
# what most losses divide by, the most usual first; then further products of few counts
USUAL = [powers for powers in NORMALISERS.values() if {*powers} <= {*COUNTED} and len(powers) <= 2]
ROOTS: list[Powers] = [{"row": Fraction(k, 2)} for k in (1, -1)]
LESS_ONE: list[Weight] = [({n: -1}, n, -1.0) for n in ("rows of the group", "rows", "batch")]


def weights(each: Sequence[Powers]) -> Iterator[Weight]:
    """Products of counts; then those with a small number beside a count."""
    yield from ((powers, "", 0.0) for powers in each)
    yield from ((powers, n, e) for e in EPSILONS for powers in each for n in powers)


WEIGHTS = (*weights([{}, *USUAL, *products(COUNTED, 2), *ROOTS]), *LESS_ONE)


def lift(function: Callable[..., Any], name: str = "") -> Hierarchy:
    """A loss function as a declaration with the function's gradient, for batches of all sizes.

    - `function`: as in `audit`; it takes advantages, or rewards. It is called, and its program recorded.
    - `name`: of the hierarchy. Default: the function's.

    The declaration has the function's gradient, and its value if that is a sum over tokens, or over rows of a mean log
    ratio. Otherwise it is a score estimator, `J = Σ μ·stop(𝒢)·A·log π`. Parameters are numbers. Advantages that come of
    rewards are declared as a formula of them.

    Its coefficients are proved equal to the function's on three small batches, of sizes that it was not read from, for
    all log-probs and advantages that meet no bound exactly; and compared on rows of up to 61 tokens.

    Raises AuditError for a function that has no declaration here, in the words of what it does.
    """
    name = name or name_of(function)
    subject = Function(function, name)
    try:
        return _declared(subject, name)
    except (Lack, Untraced, FibrationError) as error:
        raise AuditError(
            f"'{name}' has no declaration for all sizes",
            required="a gradient of each token's own numbers, and of sums over its row, group or batch",
            found=str(error).partition("\n")[0] + (f", in {place}" if (place := _place(subject, error)) else ""),
            remedy="fibration audit says what it is on small batches",
        ) from error


def _place(subject: Function, error: Exception) -> str:
    """The first line of the function whose value has no words for this reason: `line 7 of my.py`; '' if none."""
    file, made = file_of(subject.call), drawn(3, STRUCTURES[-1][0], 0.3, groups=STRUCTURES[-1][1])
    values, conditions = list[tuple[int, Any]](), [0]  # with their lines

    def watch(value: Any) -> None:
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_filename != file:
            frame = frame.f_back
        if frame is not None and isinstance(value, Atom):
            conditions.append(frame.f_lineno)
        elif frame is not None:
            values.append((frame.f_lineno, value))

    def has_words(value: Any, mine: Place) -> bool:
        at = {made.mask.shape: mine, made.mask.shape[:1]: mine[:1], (): ()}.get(value.shape)
        seen = Seen(made, mine)
        try:
            return at is None or bool(seen.tree(seen.gathered(value[at])))
        except Lack as lack:
            return str(lack) != str(error)

    try:
        subject.traced(made, watch)
        line = next((n for n, v in values if not all(has_words(v, mine) for mine in STRUCTURES[-1][2])), 0)
    except (Untraced, FibrationError):
        line = conditions[-1]
    return where(subject.call, error) or (f"line {line} of {Path(file).name}" if line else "")


def _declared(subject: Function, name: str) -> Hierarchy:
    """The declaration with the function's value, if that is a sum over tokens, or else with its gradient alone."""
    if subject.moves != "log_probs" or not (subject.reads_advantages or subject.reads_rewards):
        raise Lack("neither advantages nor rewards among the arguments")
    programs = [_program(subject, drawn(3, lengths, 0.3, groups=groups)) for lengths, groups, _ in STRUCTURES]
    either = (False, True) if subject.reads_rewards else (False,)
    lack: Exception = Lack("")
    for view in itertools.starmap(View, itertools.product(FORMS, either, either)):
        try:
            each = ((p, mine) for p, (*_, places) in zip(programs, STRUCTURES, strict=True) for mine in places)
            seen = [_seen(subject, *p, mine, view) for p, mine in each]
            for is_apart in (True, False):
                with suppress(*(Lack, Untraced, FibrationError) if is_apart else ()):
                    h = _with_weights(name, seen, view.form, is_apart)
                    _check(subject, h)
                    return h
        except (Lack, Untraced, FibrationError) as error:
            lack = lack if any(view[1:]) else error  # the other views are no more telling
    raise lack


def _with_weights(name: str, seen: Sequence[Any], form: str, is_apart: bool) -> Hierarchy:
    """The declaration with the usual weight of tokens that needs the fewest counts."""
    made: list[Hierarchy] = []
    for weight in weights(USUAL):
        if weight[1] and any(IN_GATE not in repr(h) for h in made):  # small numbers where nothing else is found
            break
        with suppress(Lack):
            made.append(_with_weight(name, seen, weight, form, is_apart))
    if not made:
        raise Lack("a number that is no product of counts")
    return min(made, key=lambda h: (repr(h).count(IN_GATE), repr(h).count("count(")))


def _program(subject: Function, made: Batch) -> tuple[Batch, list[Any]]:
    """A batch, and the objective and the coefficients of tokens as formulas of log ratios."""
    program = subject.traced(made)
    found = [f.neg(program.loss), *program.tokens]
    if "old_log_probs" in subject.roles:  # π = r·π_old
        of = {p: [single(atom("var", role, *p)) for role in ("x", "old_log_probs")] for p in made.places}
        found = f.substituted(found, {atom("var", "log_probs", *p): f.add(*each) for p, each in of.items()})
    return made, found


def _seen(
    subject: Function, made: Batch, found: list[Any], mine: Place, view: View
) -> tuple[Seen, Any, dict[int, Any], Any]:
    """What a token sees, its advantage, and its part of the loss where that is above and below 0.

    The last item is the advantage as a formula of rewards, times the weight of the token; None if it is given.
    """
    seen, coefficient = Seen(made, mine, view.without_own), found[1 + made.places.index(mine)]
    own = single(atom("var", "advantages", *(mine if subject.per_token else mine[:1])))

    def part(at: Mapping[Atom, Any]) -> Any:
        (x,) = f.substituted([coefficient if view.form == "gradients" else found[0]], at)
        each = x if view.form == "gradients" else seen.own_terms(x, view.form)
        return each if view.form == "rows" else seen.gathered(each)

    of_rewards = None
    if subject.reads_rewards:
        moving = ("x", "log_probs") if view.of_policies else ("x", *UNDER)
        (of_rewards,) = f.substituted([coefficient], {v: 0 for v in f.free(coefficient) if v.args[0] in moving})
    cases = {}
    for sign, end in {1: (0.0, math.inf), -1: (-math.inf, 0.0)}.items():
        each = part({}) if of_rewards is None else _times_own(part, of_rewards, own, sign)
        cases[sign] = decided(each, Case({own: end}), lambda key: seen.tree(key).order)
    return seen, own, cases, None if of_rewards is None else seen.gathered(of_rewards)


def _times_own(part: Callable[[Mapping[Atom, Any]], Any], of_rewards: Any, own: Any, sign: int) -> Any:
    """A token's part of the loss, of its advantage: what it is at rewards that give the advantage this sign.

    That it is a multiple of the advantage there is not shown here, but by the proof of the declaration.
    """
    nothing: dict[Atom, Any] = dict.fromkeys(f.free(of_rewards), 0)
    some: dict[bool, tuple[Any, dict[Atom, Any]]] = {}  # by whether the advantage has the sign
    for numbers in np.random.default_rng(0).integers(-8, 9, (DRAWS, len(nothing))):
        at = {v: Fraction(int(n), 4) for v, n in zip(nothing, numbers, strict=True)}
        (a,) = f.substituted([of_rewards], at)
        if math.isfinite(a) and a:
            some.setdefault(a * sign > 0, (a, at))
    if not some:
        raise Lack("rewards that push no token at ratio 1")
    a, at = some.get(True) or some[False]  # advantages may have one sign alone
    rest = part(nothing) if f.substituted([of_rewards], nothing)[0] == 0 else 0
    return f.add(f.mul(f.sub(part(at), rest), f.div(own, a)), rest)


def _with_weight(name: str, seen: Sequence[Any], weight: Weight, form: str, is_apart: bool) -> Hierarchy:
    """The declaration with a weight of tokens. Raises Lack if it is none with that.

    `is_apart`: what frozen policies decide at ratio 1 is a weight too, and no part of the gate.
    """
    counts, of_rows, of_gradients = [s.counts for s, *_ in seen], form == "rows", form == "gradients"
    from_rewards = seen[0][-1] is not None

    def of_signs(change: Callable[[Seen, Any, Any], Any], inside: bool) -> tuple[Expression, Expression]:
        each = ([s.tree(change(s, cases[sign], own), inside) for s, own, cases, _ in seen] for sign in (1, -1))
        above, below = (expression(trees, counts) for trees in each)
        return above, below

    def gated(s: Seen, x: Any, own: Any) -> tuple[Any, Any]:
        """The gated ratio, and the weight that frozen policies give it."""
        by = 1 if from_rewards else value_of(weight, s.counts)  # advantages of rewards are divided by it below
        by = f.mul(own, number(by * (s.counts["row"] if of_rows else 1)))

        def of_case(y: Any) -> Any:
            rest = _without(y, own)
            if of_rows and rest != 0:
                raise Lack("a row's value without an advantage")
            terms = f.terms_of(f.div(f.sub(y, rest), by)).items()  # in few digits, as if no float had been divided
            return f.from_terms({k: number(short(float(c))) for k, c in terms})

        found = _by_case(x, of_case)
        if not is_apart:
            return found, 1
        w, _ = _kept(s.at_ratio_1(found), 0)
        found, read = _divided(found, w), s.roles(w)
        if not read or not read <= FROZEN or s.roles(_kept(found, 0)[0]) & read:
            raise Lack("no weight that frozen policies alone decide")
        return found, w

    def gate(s: Seen, x: Any, own: Any) -> Any:
        found, _ = gated(s, x, own)
        found = _by_case(found, lambda y: f.log(y) if of_rows else f.sub(y, 1))
        if not of_gradients and not same(s.at_ratio_1(found), 0):
            raise Lack("a value that is not that of the policy's objective at ratio 1")
        return _kept(found, -1)

    def rest(s: Seen, x: Any, own: Any) -> Any:
        return _by_case(x, lambda y: f.div(f.neg(_without(y, own)), number(value_of(weight, s.counts))))

    made = Gate(transform(_one(*of_signs(lambda *x: gate(*x)[0], False)), _as_statistic))
    penalty = _one(*of_signs(rest, True))
    condition = _both_signs(*of_signs(lambda *x: gate(*x)[1], True))
    objective = Objective(times(1, weight))
    objective = objective.score() if of_gradients else objective
    if is_apart:
        objective = objective.weigh(_one(*of_signs(lambda *x: gated(*x)[1], True)))
    advantages = None
    if from_rewards:
        each = [s.tree(f.div(x, number(value_of(weight, s.counts))), True) for s, _, _, x in seen]
        advantages = expression(each, counts)
    is_of_groups = any(group.name in str(e) for e in (made, penalty, condition, objective.weight, advantages))
    formula = operators.stop(penalty) * log_prob(current) if of_gradients else penalty
    given_up = {} if form == "tokens" else {"first_order": OF_ROWS if of_rows else GIVEN_UP}
    if any(v.args[0] in SPREADS for s, *_ in seen for v in s.sums):
        given_up["baseline"] = DIVIDED
    return Hierarchy(
        name=name,
        fibrations=[Fibration(token, row, kernel=uniform())] if of_rows else [],
        gates={row: made, token: zero_gate()} if of_rows else {token: made},
        decomposition=log_ratio(scale=1 / COUNTED["row"]) if of_rows else ratio_deviation(),
        groups=[group] if is_of_groups else [],
        advantages=advantages,
        objective=objective if condition is None else objective.keep(condition),
        penalties={} if str(penalty) == "0" else {"rest": formula},
        gives_up=given_up,
    )


def _as_statistic(x: Expression) -> Expression:
    """A count of tokens over rows, groups or the batch as gates may read it."""
    return total(as_expression(1), x.over) if isinstance(x, Count) and x.of == token else x


def _one(above: Expression, below: Expression) -> Expression:
    """What holds where the advantage is above 0, and below."""
    return above if above == below else operators.where(advantage >= 0, above, below)


def _kept(x: Any, nothing: int) -> tuple[Any, Any]:
    """A formula without the cases in which it is `nothing`, and the condition of the others."""

    def joined(condition: Any, one: Any, two: Any) -> tuple[Any, Any]:
        (a, of_a), (b, of_b) = one, two
        made = b if of_a is False else a if of_b is False else f.choose(condition, a, b)
        return made, of_a if of_a is of_b else f.either(f.both(condition, of_a), f.both(f.negate(condition), of_b))

    def of_case(y: Any) -> tuple[Any, Any]:
        return (0, False) if same(y, nothing) else (y, True)

    kept: tuple[Any, Any] = _by_case(x, of_case, joined)
    return kept


def _both_signs(above: Expression, below: Expression) -> Expression | None:
    """The condition of tokens, of those of both signs, in which 1 is always and 0 never; None: always."""
    always, never = as_expression(1), as_expression(0)
    if above == below:
        return None if above == always else above
    if always in (above, below) and never not in (above, below):
        return (advantage < 0) | above if below == always else (advantage >= 0) | below
    sides = ((advantage >= 0, above), (advantage < 0, below))
    parts = [side if c == always else side & c for side, c in sides if c != never]
    return functools.reduce(operator.or_, parts)


def _divided(x: Any, w: Any) -> Any:
    """A formula divided by another one, case by case; both have the same cases."""
    if (a := _choice(x)) is None:
        return x if same(x, 0) else f.div(x, w)
    condition, one, two = a.args

    def where_it_is(way: bool) -> Any:
        return f.replaced([w], lambda c: way if c is condition else None)[0]

    return f.choose(condition, _divided(one, where_it_is(True)), _divided(two, where_it_is(False)))


def _choice(x: Any) -> Atom | None:
    """The choice that a formula is; None for other formulas."""
    a = f.below(x)[0] if isinstance(x, Formula) else None
    return a if isinstance(a, Atom) and a.op == "choose" and x is single(a) else None


def _without(x: Any, own: Any) -> Any:
    return f.substituted([x], dict.fromkeys(f.free(own), 0))[0]


def _by_case(x: Any, change: Callable[[Any], Any], joined: Callable[..., Any] = f.choose) -> Any:
    """What `change` makes of the value of each case of a formula, joined."""
    if (a := _choice(x)) is None:
        return change(x)
    condition, *values = a.args
    return joined(condition, *(_by_case(v, change, joined) for v in values))


def _check(subject: Function, h: Hierarchy) -> None:
    """Raises Lack unless the declaration is proved to have the function's coefficients, and has them on large rows."""
    reference = Reference.of(h, subject)
    large = drawn(5, LARGE, 0.5, 0.1)
    found = reference.evaluate(large)
    mine = subject.evaluate(large).coefficients
    if found is None or not np.allclose(found.coefficients, mine, rtol=1e-6, atol=1e-9 * np.abs(mine).max()):
        raise Lack(
            f"something else on {len(LARGE)} rows of up to {max(LARGE)} tokens: does the padded width decide something?"
        )
    alone = drawn(6, (2, 3, 1), 0.5, groups=(0, 0, 1))
    if subject.reads_rewards and (theirs := reference.evaluate(alone)) is not None:
        mine = subject.evaluate(alone).coefficients
        if np.isfinite(mine).all() and not np.allclose(theirs.coefficients, mine, rtol=1e-6, atol=1e-9):
            raise Lack("something else for a prompt group of one answer")
    if not subject.structures:
        raise Lack("a function that takes no small batch")
    for structure in subject.structures:
        pairs = zip(subject.formulas(structure), reference.with_numbers(structure, {}), strict=True)
        if not all(equal(one, two) for one, two in pairs):
            raise Lack(f"something else on {structure}")


# ------------------------------------------------------------ in words


def _solved(values: Sequence[Any], counts: Sequence[dict[str, int]]) -> tuple[Any, Weight]:
    """A number of each token as a number times counts."""
    each, by = np.array(values, float), {n: np.array([c[n] for c in counts], float) for n in COUNTED}
    found = multiples(each, by, WEIGHTS, EXACT)
    if (first := next(found, None)) is None:
        raise Lack("a number that is no product of counts")
    return _written(first[0]), first[1]


def _written(x: float) -> Any:
    """A number in few digits, or else as a quotient of small whole numbers, or else in all its digits."""
    found, simple = short(x), number(x)
    is_quotient = isinstance(simple, Fraction) and simple.denominator <= SIMPLE
    return simple if is_quotient and len(repr(found)) > DIGITS else found


def times(k: Any, weight: Weight, factors: Sequence[Expression] = ()) -> Expression:
    """A number times counts and factors. The logarithm of a ratio of few digits is written as such."""
    ratio = short(math.expm1(k)) if abs(k) < WIDE and len(repr(k)) > DIGITS else k
    if len(repr(ratio)) <= 8 < len(repr(k)) and not isinstance(k, Fraction):
        k, factors = 1, [operators.log1p(as_expression(ratio)), *factors]
    each = ([as_expression(abs(k))] if abs(k) != 1 else []) + [*factors]
    found = functools.reduce(operator.mul, each) if each else as_expression(1)
    found = -found if k < 0 else found
    powers, name, epsilon = weight
    for n, p in powers.items():
        by = COUNTED[n] if n != name else COUNTED[n] + epsilon if epsilon > 0 else COUNTED[n] - 1
        by = by if abs(p) == 1 else operators.sqrt(by)
        found = found * by if p > 0 else found / by
    return found


def expression(trees: Sequence[Tree], counts: Sequence[dict[str, int]]) -> Expression:
    """Trees of one shape as an expression of the language."""
    first = trees[0]
    if any(t.shape != first.shape for t in trees):
        raise Lack("another formula on batches of other sizes")

    def of(k: int) -> Expression:
        return expression([t.args[k] for t in trees], counts)

    if first.op == "number":
        return times(*_solved([t.args[0] for t in trees], counts))
    if first.op in READ:
        return READ[first.op]
    if first.op == "own":
        return OWN[first.args[0]]
    if first.op in STATISTICS:
        over, weight, _, of_rows = first.args
        unit, place = of(2), PLACES[over]
        if of_rows:
            return STATISTICS[first.op](unit, over=place, of=row)
        by_length = unit * COUNTED["row"] if weight > 0 else unit / COUNTED["row"] if weight else unit
        return STATISTICS[first.op](by_length, over=place)
    if first.op == "power":
        return of(0) ** first.args[1]
    if first.op == "product":
        k, (powers, name, epsilon) = _solved([t.number for t in trees], counts)
        below = [i for i, t in enumerate(first.args) if t.op == "power" and t.args[1] < 0]
        above = [i for i in range(1, len(first.args)) if i not in below]
        factors = [of(i) for i in above]
        for i, factor in enumerate(factors):
            op, (over, *_) = first.args[above[i]].op, first.args[above[i]].args or ("",)
            if op not in ("total", "others") or not isinstance(factor, Aggregate):
                continue
            over = over if factor.of is None else OF_ROWS_OVER[over]
            less_one = epsilon if over == name else 0
            if powers.get(over) == -1 and less_one == (-1 if factor.others else 0):
                factors[i] = replace(factor, kind="mean")
                powers = {n: p for n, p in powers.items() if n != over}
            elif factor.others:
                raise Lack("a sum over the other rows that is no mean")
        found = times(k, (powers, name, epsilon), factors)
        for i in below:
            divisor, p = expression([t.args[i].args[0] for t in trees], counts), -first.args[i].args[1]
            found = found / (divisor if p == 1 else divisor**p)
        return found
    if first.op in ("lt", "le") and first.args[0].op == "product":  # sums beside counts: means beside numbers
        _, (powers, name, _) = _solved([t.args[1].args[0] for t in trees], counts)
        totals = (a.args[0] for a in first.args[0].args if a.op == "total" and not name)
        if over := next((over for over in totals if powers == {over: 1}), ""):
            trees = [t.scaled(Fraction(1, c[over])) for t, c in zip(trees, counts, strict=True)]
    if first.op == "sum":
        falls = [t.op == "product" and t.number < 0 for t in first.args]
        first_, *order = sorted(range(len(falls)), key=falls.__getitem__)
        found = of(first_)
        for k in order:
            each = expression([t.args[k].scaled(-1 if falls[k] else 1) for t in trees], counts)
            found = found - each if falls[k] else found + each
        return found
    parts = [of(k) for k in range(len(first.args))]
    by: Callable[..., Expression] = OPERATIONS.get(first.op) or getattr(operators, first.op)
    return by(*parts)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "choose": operators.where, "exp": operators.exp, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "eq": lambda a, b: (a <= b) & (a >= b), "not": lambda a: ~a, "and": lambda a, b: a & b,
}  # fmt: skip
READ = {"residual": residual, "ratio": 1 + residual, "log ratio": operators.log1p(residual)}
PLACES = {"row": row, "group": group, "batch": batch}
OF_ROWS_OVER = {"row": "", "group": "rows of the group", "batch": "rows"}


def _of_all(unit: Expression, over: Stratum, of: Stratum | None = None) -> Expression:
    """The deviation with `n` in the place of `n - 1`."""
    return operators.sqrt(mean((unit - mean(unit, over=over, of=of)) ** 2, over=over, of=of))


STATISTICS: dict[str, Callable[..., Expression]] = {
    "total": total, "others": functools.partial(mean, others=True), "deviation": deviation, "population": _of_all,
    "largest": largest, "before": before, "after": after,
}  # fmt: skip
current, old = policies("current old")
OWN: dict[str, Expression] = {
    "x": token_log_ratio, "mean": residual, "advantages": advantage, "rewards": reward, "log_probs": log_prob(current),
    "old_log_probs": log_prob(old),
    **{role: log_prob(policies(name)[0]) for name, role in ARGUMENT_OF.items()},
}  # fmt: skip
