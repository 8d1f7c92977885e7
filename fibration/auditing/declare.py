"""A function as a declaration for batches of all sizes.

A coefficient is one formula per token on two batches of other sizes. Sums over the tokens of a row, a group or the
batch become statistics, cases become `where`, and numbers that differ between the batches become counts. The
declaration is kept if its coefficients are proved equal to the function's on the audit's own structures, which are of
further sizes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fibration.auditing.batch import drawn
from fibration.auditing.formula import (
    Formula,
    Untraced,
    add,
    atom,
    both,
    choose,
    div,
    either,
    free,
    from_terms,
    is_number,
    log,
    mul,
    neg,
    negate,
    number,
    single,
    sub,
    substituted,
    terms_of,
)  # fmt: skip
from fibration.auditing.function import Function, name_of
from fibration.auditing.prove import Case, decided, equal, same
from fibration.auditing.record import Traced
from fibration.auditing.reference import Reference
from fibration.auditing.seen import Lack, Place, Seen
from fibration.auditing.words import (
    COUNTS,
    USUAL,
    Weight,
    current,
    expression,
    row,
    short,
    times,
    token,
    value_of,
    weights,
)  # fmt: skip
from fibration.errors import AuditError, FibrationError
from fibration.language import operators
from fibration.language.atoms import advantage
from fibration.language.decompositions import log_ratio, ratio_deviation
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, zero_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration, uniform
from fibration.language.objectives import Objective
from fibration.language.policies import log_prob

STRUCTURES = (
    (((3, 1, 2, 4, 1, 2), (0, 0, 0, 0, 1, 1)), ((0, 0), (3, 1))),
    (((4, 1, 3, 2, 2, 1, 1), (0, 0, 0, 1, 1, 2, 2)), ((0, 1), (2, 0))),
)  # rows, their groups, and the tokens whose formulas are read
LARGE = tuple(1 + k * k % 61 for k in range(1, 41))  # rows on which numbers are compared
FORMS = ("tokens", "rows", "gradients")  # a value that is a sum over tokens, or over rows of a mean log ratio; no value
OF_ROWS = "one ratio per row: what single tokens do beyond their mean is dropped"
GIVEN_UP = "read from a function: it has the function's gradient, and no value"


def lift(function: Callable[..., Any], name: str = "") -> Hierarchy:
    """A loss function as a declaration with the function's gradient, for batches of all sizes.

    - `function`: as in `audit`; it takes advantages. It is called, and its program recorded.
    - `name`: of the hierarchy. Default: the function's.

    The declaration has the function's gradient, and its value if that is a sum over tokens, or over rows of a mean log
    ratio. Otherwise it is a score estimator, `J = Σ μ·stop(𝒢)·A·log π`. Parameters are numbers.

    Its coefficients are proved equal to the function's on three small batches, of sizes that it was not read from, for
    all log-probs and advantages that meet no bound exactly; and compared on rows of up to 60 tokens.

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
            found=str(error).partition("\n")[0],
            remedy="fibration audit says what it is on small batches",
        ) from error


def _declared(subject: Function, name: str) -> Hierarchy:
    """The declaration with the function's value, if that is a sum over tokens, or else with its gradient alone."""
    if subject.moves != "log_probs" or not subject.reads_advantages:
        raise Lack("no advantages among the arguments")
    lack: Exception = Lack("")
    for form in FORMS:
        try:
            seen = [s for shape, places in STRUCTURES for s in _seen(subject, shape, places, form)]
            weighed = ((w, _with_weight(name, seen, w, form)) for w in weights(USUAL))
            made: list[Hierarchy] = []
            for weight, h in weighed:  # small numbers in divisors where nothing else is found
                if weight[1] and made:
                    break
                made += [] if h is None else [h]
            if not made:
                raise Lack("a number that is no product of counts")
            h = min(made, key=lambda h: repr(h).count("count("))
            _check(subject, h)
            return h
        except (Lack, Untraced, FibrationError) as error:
            lack = error
    raise lack


def _seen(subject: Function, shape: Any, places: Sequence[Place], form: str) -> Iterator[tuple[Seen, Any, Any]]:
    """What tokens see of a batch, their advantages, and their parts of the loss where these are above and below 0."""
    lengths, groups = shape
    made = drawn(3, lengths, 0.3, groups=groups)
    tokens: list[Place] = [(r, t) for r, n in enumerate(lengths) for t in range(n)]
    program = subject.traced(made)
    found = subject.of_tokens(program, made) if form == "gradients" else [neg(program.loss)]
    if "old_log_probs" in subject.roles:  # π = r·π_old
        of = {p: [single(atom("var", role, *p)) for role in ("x", "old_log_probs")] for p in tokens}
        found = substituted(found, {atom("var", "log_probs", *p): add(*each) for p, each in of.items()})
    for mine in places:
        seen = Seen(made, mine)
        own = single(atom("var", "advantages", *(mine if subject.per_token else mine[:1])))
        each = found[tokens.index(mine)] if form == "gradients" else seen.own_terms(found[0], form)
        each = each if form == "rows" else seen.gathered(each)
        ends = {1: (0.0, math.inf), -1: (-math.inf, 0.0)}
        order = lambda key, seen=seen: seen.tree(key).order  # noqa: E731
        yield seen, own, {sign: decided(each, Case({own: end}), order) for sign, end in ends.items()}


def _with_weight(name: str, seen: Sequence[Any], weight: Weight, form: str) -> Hierarchy | None:
    """The declaration with a weight of tokens; None if it is none with that."""
    counts = [s.counts for s, *_ in seen]

    def of_signs(change: Callable[[Seen, Any, Any], Any], inside: bool) -> tuple[Expression, Expression]:
        each = ([s.tree(change(s, cases[sign], own), inside) for s, own, cases in seen] for sign in (1, -1))
        above, below = (expression(trees, counts) for trees in each)
        return above, below

    def gate(s: Seen, x: Any, own: Any) -> Any:
        by = mul(own, number(value_of(weight, s.counts)))

        def leaf(y: Any) -> Any:
            rest = _without(y, own)
            if form != "rows":
                return sub(_rounded(div(sub(y, rest), by)), 1)
            if rest != 0:
                raise Lack("a row's value without an advantage")
            return log(div(y, mul(by, s.counts["row"])))

        found = _of_leaves(x, leaf)
        moving = single(atom("var", "mean" if form == "rows" else "x", *s.mine))
        if form != "gradients" and not same(_without(found, moving), 0):
            raise Lack("a value that is not that of the policy's objective at ratio 1")
        return found

    def rest(s: Seen, x: Any, own: Any) -> Any:
        return _of_leaves(x, lambda y: div(neg(_without(y, own)), number(value_of(weight, s.counts))))

    try:
        gates = of_signs(lambda *x: _kept(gate(*x))[0], False)
        penalty = _one(*of_signs(rest, True))
        kept = of_signs(lambda *x: _kept(gate(*x))[1], True)
    except Lack:
        return None
    objective = Objective(times(1, weight))
    objective = objective.score() if form == "gradients" else objective
    if (condition := _both_signs(*kept)) is not None:
        objective = objective.keep(condition)
    gate_ = Gate(_one(*gates))
    if form == "rows":
        return Hierarchy(
            name=name,
            fibrations=[Fibration(token, row, kernel=uniform())],
            gates={row: gate_, token: zero_gate()},
            decomposition=log_ratio(scale=1 / COUNTS["row"]),
            objective=objective,
            gives_up={"first_order": OF_ROWS},
        )
    formula = operators.stop(penalty) * log_prob(current) if form == "gradients" else penalty
    return Hierarchy(
        name=name,
        gates={token: gate_},
        decomposition=ratio_deviation(),
        objective=objective,
        penalties={} if str(penalty) == "0" else {"rest": formula},
        gives_up={"first_order": GIVEN_UP} if form == "gradients" else {},
    )


def _one(above: Expression, below: Expression) -> Expression:
    """What holds where the advantage is above 0, and below."""
    return above if str(above) == str(below) else operators.where(advantage >= 0, above, below)


def _kept(x: Any) -> tuple[Any, Any]:
    """A gate without the cases in which the gated ratio is 0, and the condition of the others."""
    if (cases := _cases(x)) is None:
        return (0, False) if same(x, -1) else (x, True)
    condition, one, two = cases
    (a, of_a), (b, of_b) = _kept(one), _kept(two)
    made = b if of_a is False else a if of_b is False else choose(condition, a, b)
    return made, of_a if of_a is of_b else either(both(condition, of_a), both(negate(condition), of_b))


def _both_signs(above: Expression, below: Expression) -> Expression | None:
    """The condition of tokens, of those of both signs, in which 1 is always and 0 never; None: always."""
    if str(above) == str(below):
        return None if str(above) == "1" else above
    if "1" in (str(above), str(below)) and "0" not in (str(above), str(below)):
        return (advantage < 0) | above if str(below) == "1" else (advantage >= 0) | below
    sides = ((advantage >= 0, above), (advantage < 0, below))
    parts = [side if str(c) == "1" else side & c for side, c in sides if str(c) != "0"]
    return functools.reduce(operator.or_, parts)


def _rounded(x: Any) -> Any:
    """A formula with factors in few digits, as if no float had been divided by another."""
    return from_terms({k: number(short(float(c))) for k, c in terms_of(x).items()})


def _without(x: Any, own: Any) -> Any:
    (advantage,) = free(own)
    return x if is_number(x) else substituted([x], {advantage: 0})[0]


def _cases(x: Any) -> Any:
    """The condition of a choice and its two values; None of any other formula."""
    if isinstance(x, Formula) and len(x.terms) == 1:
        (((m, e), c),) = x.terms.items()
        if e is None and c == 1 and [(a.op, p) for a, p in m] == [("choose", 1)]:
            return m[0][0].args
    return None


def _of_leaves(x: Any, change: Callable[[Any], Any]) -> Any:
    """The cases of a formula, each changed."""
    if (cases := _cases(x)) is None:
        return change(x)
    condition, one, two = cases
    return choose(condition, _of_leaves(one, change), _of_leaves(two, change))


def _check(subject: Function, h: Hierarchy) -> None:
    """Raises Lack unless the declaration is proved to have the function's coefficients, and has them on large rows."""
    reference = Reference.of(h, subject)
    large = drawn(5, LARGE, 0.5, 0.1)
    found = reference.evaluate(large)
    mine = subject.evaluate(large).coefficients
    if found is None or not np.allclose(found.coefficients, mine, rtol=1e-6, atol=1e-9 * np.abs(mine).max()):
        raise Lack(f"something else on {len(LARGE)} rows of up to {max(LARGE)} tokens")
    for structure, made in subject.programs.items():
        if not isinstance(made, Traced):
            raise made
        pairs = zip(subject.of_tokens(made, structure), reference.with_numbers(structure, {}), strict=True)
        if not all(equal(one, two) for one, two in pairs):
            raise Lack(f"something else on {structure}")
