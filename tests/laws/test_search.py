"""The search for counterexamples: its candidates, its certainty, and that it finds nothing on right hierarchies."""

import itertools
from fractions import Fraction

import mpmath
import pytest
from hierarchies import builders, quivers, wrong_on_rare_batches
from hierarchies.builders import T, two
from hierarchies.right import RIGHT, SHIPPED
from thorough import ALL

from fibration import (
    Parameter,
    absolute,
    clip,
    exp,
    load,
    log,
    log_ratio,
    maximum,
    residual,
    sqrt,
    tanh,
    uniform,
    where,
)
from fibration import sign as sign_of
from fibration.language.atoms import Reading
from fibration.language.exact import NoValue
from fibration.language.expressions import apply
from fibration.language.hierarchy import gates
from fibration.language.operators import OPERATORS, Primitive
from fibration.language.outline import whole_batch
from fibration.laws.batches import first_update
from fibration.laws.batches.search import concretes
from fibration.laws.gates import recovery
from fibration.laws.gates.coordinates import coordinate
from fibration.laws.kernels import coherent, reflecting
from fibration.laws.objectives import objective
from fibration.laws.off_policy import positivity_search
from fibration.laws.on_policy import identity
from fibration.laws.subject import Subject
from fibration.laws.values.intervals import Interval, Series, Unsure, enclose, evaluate_series
from fibration.laws.values.probes import between, crossings, simplest, turning, whole_crossings

F = Fraction
a = Reading("a")
CORRECT = {
    **{n: load(n) for n in SHIPPED}, **RIGHT,
    **{n: case.hierarchy for n, case in quivers.right().items() if case.hierarchy.orthogonalise is None},
}  # fmt: skip
SAMPLE = list(CORRECT) if ALL else list(CORRECT)[::33]


def test_every_chain_of_up_to_five_tokens_is_tried():
    rows = [
        list(c.maps[builders.token, builders.trajectory].count(r) for r in range(c.size[builders.trajectory]))
        for c in concretes(builders.chain(uniform(), uniform()), [])
    ]
    partitions = {1: 1, 2: 2, 3: 3, 4: 5, 5: 7}
    for n, many in partitions.items():
        assert len({tuple(sorted(r)) for r in rows if sum(r) == n}) == many


def searches(h):
    """Every search for a counterexample to a law that the hierarchy does not give up."""
    for f in h.fibrations:
        yield reflecting.negative_weight(h, f)
    for cover in dict.fromkeys(c for f in h.fibrations for c in h.shape.covers(f.target)):
        yield reflecting._other_sum(cover, Subject(h, []))
    yield objective.token_without_weight(h, whole_batch(h), h.objective.spelled_out(h.leaves, h.rows))
    for leaf in h.leaves:
        yield recovery.ratio_not_recovered(h, leaf)
    if not h.shape.is_tree:
        yield coherent.element_of_two_masses(h)
    if "positivity" not in h.gives_up:
        yield positivity_search.ratio_not_positive(h)
        if len(h.order) == 1:
            yield positivity_search.of_one_token(h, coordinate(h, Subject(h, [])))
    if not {"first_order", "identity"} & set(h.gives_up):
        yield from (identity.gate_off_identity(h, s, g) for s, _, g in gates(h))
        yield first_update.off_policy(h)
    if "gradient" not in h.gives_up:
        yield first_update.wrong_coefficients(h)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SAMPLE)
def test_searches_find_nothing_on_right_hierarchies(name):
    """Proofs are left out, so every search runs to its end."""
    assert [str(w) for w in searches(CORRECT[name]) if w is not None] == []


# ---------------------------------------------------------------- numbers


def test_whole_crossings_finds_the_numbers_at_which_a_sign_changes():
    assert whole_crossings(lambda n: n * n - 10**6, 10**5) == [1000]
    assert whole_crossings(lambda n: n * n - 10**6 - 1, 10**5) == [1001]
    assert whole_crossings(lambda n: (n - 500) * (n - 502), 10**5) == [500, 502]
    assert whole_crossings(lambda n: (n - 777) ** 2, 10**5) == [777, 778]
    assert whole_crossings(lambda n: F(3), 10**5) == []
    assert crossings(lambda v: v - F("0.123456"), F(0), F(1)) == [F("0.123456")]
    assert crossings(lambda v: (v - F("20.3")) ** 2, F(0), F(40)) == [F("20.3")]
    assert crossings(lambda v: (v - F("0.3")) * (v - F("0.4"))) == [F("0.3"), F("0.4")]
    assert crossings(lambda v: 1 - v, F(1), None) == [], "beyond the bound"
    [root] = crossings(lambda v: v * v - 2, F(0))
    assert abs(root * root - 2) < F(1, 10**15)


def test_simplest_is_the_fraction_with_the_smallest_denominator():
    assert [simplest(F(x), F(y)) for x, y in (("0.3", "0.34"), ("-2.5", "-1.2"), ("-1", "1"), ("3.1", "3.2"))] == [
        F(1, 3), -2, 0, F(16, 5),
    ]  # fmt: skip
    for low, high in itertools.pairwise([F(0), F(1, 7), F("0.333"), F(22, 7), F(9)]):
        assert low <= simplest(low, high) <= high


def test_between_has_points_at_and_around_each_breakpoint():
    found = between([F(3), F(4)])
    assert {F(3), F(4)} < set(found)
    for low, high in ((F("2.9"), 3), (3, F("3.1")), (F("3.2"), F("3.8")), (4, F("4.1")), (F(-9), F(2)), (F(5), F(9))):
        assert any(low < v < high for v in found), (low, high)


def test_turning_lists_the_formulas_that_decide_a_branch():
    e = where(T * T > 10, clip(a, -T, 2), 1 / (a - 3)) + log(a) + absolute(a)
    found = {str(d) for d in turning([e])}
    assert {str(T * T - 10), "a - 3", "a", "a - 0", "a - 2"} <= found


def test_the_candidates_contain_sizes_at_which_a_branch_changes():
    far = Parameter("far", lower=10, upper=40)
    reads = two(where(exp(T / 10) > far * far, 1 / T, 2 / T)).fibrations[0].weight
    found = [(c.size[builders.token], c.parameters[far]) for c in concretes(two(), [reads])]
    both = {float(mpmath.exp(n / 10)) > value**2 for n, value in found if n > 40}
    assert both == {True, False}
    assert max(n for n, _ in found) < 1000, "the sizes are those of the condition"


def test_candidates_have_siblings_of_different_sizes():
    h = wrong_on_rare_batches.wrong()["negative for one long beside two short"].hierarchy
    found = concretes(h, [f.weight for f in h.fibrations])
    sizes = {
        tuple(sorted(len(c.over(builders.token, builders.trajectory, b)) for b in range(c.size[builders.trajectory])))
        for c in found
    }
    assert {(1, 1, 5), (1, 5, 5), (2, 2, 2, 100), (1, 100)} <= sizes


# ---------------------------------------------------------------- certain values


@pytest.mark.parametrize("name", [n for n, row in OPERATORS.items() if isinstance(row, Primitive) and row.rounded])
def test_every_rounded_operator_is_enclosed(name):
    """Enclosures assume that each operator increases."""
    exactly = {"sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)), "softplus": lambda v: mpmath.log(1 + mpmath.exp(v))}
    function, e = exactly.get(name) or getattr(mpmath, name), OPERATORS[name]
    last = None
    for v in (F(1, 10**9), F(1, 3), F(1), F(1) + F(1, 10**30), F(7), F(50), F(1000)):
        found = enclose(apply(name, a), {a: v}.__getitem__)
        with mpmath.workdps(1000):
            truth = function(mpmath.mpf(v.numerator) / v.denominator)
            low, high = (mpmath.mpf(b.numerator) / b.denominator for b in (found.low, found.high))
            assert low <= truth <= high
            assert high - low <= abs(truth) * mpmath.mpf(10) ** -13 + mpmath.mpf(10) ** -40
        assert last is None or last.low <= found.high
        last = found
    assert e.rounded


def test_enclosures_of_cancelling_terms_are_unsure():
    at = {a: F(200)}.__getitem__
    for unsure in (1 / (1 - tanh(a)), log(1 - tanh(a)), where(tanh(a) < 1, 1, 2), exp(exp(a)), sqrt(exp(-a) - exp(-a))):
        with pytest.raises(Unsure):
            enclose(unsure, at)
    for never in (1 / (a - a), log(-exp(a)), sqrt(-1 - tanh(a)), maximum(1 / (a - 200), 1)):
        with pytest.raises(NoValue):
            enclose(never, at)
    around = Interval(F(-1), F(1))
    with pytest.raises(Unsure):
        Interval(F(1), F(1)) / around
    with pytest.raises(Unsure):
        around.is_below(Interval(F(0), F(0)))
    assert enclose(sqrt(a * a / 4), at) == Interval(F(100), F(100))
    assert enclose(where((a > 100) & ~(a >= 201), -(a**2) / 3, exp(a)), at) == Interval(F(-40000, 3), F(-40000, 3))


# ---------------------------------------------------------------- beside a point


def terms(e, order=3, sign=1):
    found = evaluate_series(e, {a: Series.of(F(0), F(sign))}.__getitem__)
    return [found.term(k).middle for k in range(order)]


def test_series_have_the_first_terms_of_a_formula():
    assert terms((1 + a) * (1 - 2 * a) / (1 + a)) == [1, -2, 0]
    assert terms(1 / (1 - a - a * a)) == [1, 1, 2]
    assert terms(a * a / a - 3) == [-3, 1, 0]
    assert terms((2 + a) ** 3) == [8, 12, 6]
    assert terms(where(absolute(a) < 1e-40, 5, a)) == [5, 0, 0]
    assert terms(where((a <= 0) | (a > 1), 5, a), sign=-1) == [5, 0, 0]
    assert terms(where(a * a < a, maximum(a, 2 * a), sign_of(a))) == [0, 2, 0]
    assert terms(where(a - a < 0, 5, 7)) == [7, 0, 0], "a tie of equal terms"
    assert [round(float(t), 9) for t in terms(tanh(2 * a) + exp(3 * a), 2)] == [1, 5]
    assert terms(sqrt(4 + a), 2) == [2, F(1, 4)]


def test_series_of_formulas_without_terms_are_unsure():
    one = {a: Series.of(F(0), F(1))}.__getitem__
    for unsure in (sqrt(a), 1 / a, exp(a) - exp(a) + where(exp(a) <= exp(a), 1, 2), where(tanh(a) - a < 0, 1, 2)):
        with pytest.raises(Unsure):
            evaluate_series(unsure, one)
    for never in (log(-a), 1 / (a - a), sqrt(-a - 1)):
        with pytest.raises(NoValue):
            evaluate_series(never, one)
    with pytest.raises(Unsure):
        evaluate_series(exp(a), one).term(2)


def test_a_slope_with_a_slow_limit_is_not_refuted():
    """The quotient is above 1 at every step and tends to 1 like `1/log`."""
    slowly = builders.one(
        where(residual > 0, residual * (1 + 1 / log(2 + 1 / absolute(residual))), residual), log_ratio()
    )
    assert identity.gate_off_identity(slowly, builders.token, slowly.gate(builders.token)) is None


def test_signs_of_a_bounded_formula_include_those_at_its_bounds():
    """A bound of 0 adds the sign 0."""
    ends = [Fraction(n, 3) for n in (-2, -1, 0, 1, 2)]
    for low, high in itertools.combinations_with_replacement(ends, 2):
        inside = [x for x in ends if low <= x <= high]
        assert Interval(low, high).signs == {(x > 0) - (x < 0) for x in inside}
