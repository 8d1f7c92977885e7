"""Random hierarchies, right and wrong: what is proved holds wherever it is tried, what is refuted fails where it says.

Everything is worked out again in rationals (`brute.py`): sums over fibres, the dense operator of eq:fgh_gating, exact
difference quotients. The dense operator shares no code with lowering, the interpreter or the laws.
"""

import random
from fractions import Fraction

import pytest
from hierarchies import zoo
from hierarchies.zoo import budget, epsilon, one, prompt_group, token, trajectory, two, weight, x
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracles import brute
from oracles.interpreted import Interpreter
from thorough import ALL

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    absolute,
    advantage,
    aggregate_gate,
    clip,
    clip_gate,
    count,
    density,
    exp,
    expm1,
    gated,
    identity_gate,
    log_ratio,
    maximum,
    minimum,
    ratio_deviation,
    residual,
    sign,
    signed_log_ratio,
    tanh,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from fibration.language.traversal import atoms

CHAIN = (token, trajectory, prompt_group, zoo.domain)
price = Attribute("price", on=trajectory)
share = Parameter("share", default=0.3, upper=1)


def examples(n):
    """So many of what hypothesis draws; a third of them in an everyday run."""
    n = n if ALL else -(-n // 3)
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=n, deadline=None, derandomize=True, database=None, suppress_health_check=checks, print_blob=False
    )


def check(h, sizes=(1, 2, 3, 4), seed=0):
    """Verify, try what is proved, work out what is refuted. Returns the report."""
    found = h.verify()
    brute.uphold(h, found.verdicts, brute.worlds_for(h, sizes, seed=seed), seed=seed)
    for verdict in found.verdicts:
        if verdict.status == "refuted":
            brute.confirm(h, verdict, found.verdicts)
    for fact in found.facts:
        assert fact.value
    return found


def small(low=-3, high=3):
    return st.builds(Fraction, st.integers(low, high), st.sampled_from([1, 2, 4]))


# ---------------------------------------------------------------- kernels


def right_kernels(source, target):
    """Weights that sum to 1 over every fibre, as quotients of additive measures."""
    made = [1 / count(source, over=target)]
    for finer in CHAIN[: CHAIN.index(source)]:
        made.append(count(finer, over=source) / count(finer, over=target))
    made.append(total(weight, over=source) / total(weight, over=target))
    if source == token:
        made[-1] = weight / total(weight, over=target)
    if CHAIN.index(source) >= CHAIN.index(trajectory):
        own = price if source == trajectory else total(price, over=source)
        made.append(own / total(price, over=target))
    return made


@st.composite
def linear_kernels(draw, source, target):
    """A combination of right kernels, and what its coefficients add up to: it sums to that over every fibre."""
    parts = draw(st.lists(st.sampled_from(right_kernels(source, target)), min_size=1, max_size=3, unique_by=str))
    coefficients = [draw(small(-2, 3)) for _ in parts]
    if draw(st.booleans()):
        coefficients[0] = 1 - sum(coefficients[1:], Fraction(0))
    assume(any(coefficients))
    value = sum((c * p for c, p in zip(coefficients[1:], parts[1:], strict=True)), coefficients[0] * parts[0])
    return value, sum(coefficients), coefficients


def over(levels, kernels):
    return Hierarchy(
        name="random",
        fibrations=[
            Fibration(a, b, kernel=MarkovKernel(k)) for a, b, k in zip(levels, levels[1:], kernels, strict=False)
        ],
        gates=dict.fromkeys(levels, identity_gate()),
        decomposition=log_ratio(),
        objective=token_mean(),
    )


def status(found, law, subject):
    return next(v.status for v in found.verdicts if (v.law, v.subject) == (law, subject))


@examples(40)
@given(st.integers(0, 2).flatmap(lambda i: st.tuples(st.just(i), linear_kernels(CHAIN[i], CHAIN[i + 1]))))
def test_kernels_linear_in_measures_are_decided_completely(drawn):
    level, (value, adds_up_to, coefficients) = drawn
    source, target = CHAIN[level], CHAIN[level + 1]
    levels = CHAIN[: level + 2]
    kernels = [1 / count(a, over=b) for a, b in zip(levels[:-2], levels[1:-1], strict=True)]
    found = check(over(levels, [*kernels, value]), sizes=(1, 2, 3, 4))
    what = f"kernel {source} → {target}"
    assert status(found, "reflecting", what) == ("proved" if adds_up_to == 1 else "refuted")
    if all(c >= 0 for c in coefficients):
        assert status(found, "markov", what) == "proved"


BENT = (
    lambda n, m, w, all_w: 1 / (n + 1),
    lambda n, m, w, all_w: 1 / n + (n - 1) * (n - 2) / n,
    lambda n, m, w, all_w: where(n <= 2, 1 / n, 1 / (n - 1)),
    lambda n, m, w, all_w: where(n > 3, w / all_w, 1 / n),
    lambda n, m, w, all_w: where(w > 1, w / all_w, 1 / n),
    lambda n, m, w, all_w: where(all_w > 2, w / all_w, 1 / n),
    lambda n, m, w, all_w: w * w / (all_w * all_w),
    lambda n, m, w, all_w: w * w * n / (all_w * all_w),
    lambda n, m, w, all_w: share * w / all_w + (1 - share) / n,
    lambda n, m, w, all_w: share * w / all_w + (1 - share * share) / n,
    lambda n, m, w, all_w: 2 * w / all_w - 1 / n,
    lambda n, m, w, all_w: 1 / n + (w - all_w / n) * share,
    lambda n, m, w, all_w: 1 / n + (w - all_w / n) / (all_w * n),
    lambda n, m, w, all_w: (1 - w / all_w) / (n - 1),
    lambda n, m, w, all_w: where(n < 2, 1, (1 - w / all_w) / (n - 1)),
    lambda n, m, w, all_w: where(n <= 1, 1 + 0 * w, (1 - w / all_w) / (n - 1 + 0 * w)),
    lambda n, m, w, all_w: absolute(w - all_w / n) / n,
    lambda n, m, w, all_w: maximum(w / all_w, 1 / n),
    lambda n, m, w, all_w: minimum(w / all_w, 1 / n) + maximum(0 * w, 0),
    lambda n, m, w, all_w: exp(w) / n,
    lambda n, m, w, all_w: (w + m) / (all_w + m * n),
    lambda n, m, w, all_w: (w - m) / (all_w - m * n),
    lambda n, m, w, all_w: w / all_w / (share / share),
    lambda n, m, w, all_w: 1 / (all_w / w),
    lambda n, m, w, all_w: 1 / n / (1 + 1 / n) * (n + 1) / n,
    lambda n, m, w, all_w: (w * n) / (all_w * n) * (1 + share) / (1 + share),
)


@pytest.mark.parametrize(("form", "level"), [(f, i) for f in range(len(BENT)) for i in range(3) if ALL or f % 3 == i])
def test_bent_kernels(form, level):
    """Polynomials, branches, mixtures, parameters: whatever is said of them is so."""
    levels = CHAIN[: level + 2]
    source, target = levels[-2:]
    w = weight if source == token else total(weight, over=source)
    n, m = count(source, over=target), Parameter("level", default=0.5)
    kernels = [1 / count(a, over=b) for a, b in zip(levels[:-2], levels[1:-1], strict=True)]
    value = BENT[form](n, m, w, total(weight, over=target))
    check(over(levels, [*kernels, value]), sizes=(1, 2, 3, 4) if level < 2 else (1, 2, 3), seed=form)


# ---------------------------------------------------------------- gates


@st.composite
def gates(draw, depth=2, base=None):
    """A formula in the residual: now and then the identity near 0, often not."""
    r = residual
    d = base
    leaves = [
        r,
        r,
        2 * r,
        r + r * r,
        clip(r, -epsilon, budget),
        tanh(r),
        r * (1 + epsilon * r),
        r * r,
        expm1(r),
        r - r**3,
    ]
    leaves += [Gate(aggregate_gate(budget, rollback=3).expression).expression, absolute(r), sign(r) * absolute(r)]
    leaves += [r / (1 + absolute(r)), r * r / r, r + draw(small(-1, 1)), draw(small()) * r, r * (1 + r) / (1 + r)]
    if d is not None:
        leaves += [r + d, r * (1 + d), r / (1 + d * d), r + d * r, r + d - d, clip(r, -epsilon - d, epsilon + d)]
        leaves += [clip(r, -maximum(budget - absolute(d), 0), maximum(budget - absolute(d), 0)), r + d * d]
    if depth == 0:
        return draw(st.sampled_from(leaves))
    conditions = [r > 0, r >= 0, r < 0, r <= 0, absolute(r) <= epsilon, absolute(r) < budget / 10, r > 1, r > -1]
    conditions += [advantage >= 0, advantage > 0, epsilon < 1, budget > epsilon, r * r > 0, r * r >= 0, r + r * r > 0]
    conditions += [r > epsilon * r, 2 * r <= r, r - r**3 < 0, expm1(r) > 0, tanh(r) >= r, (r >= 0) & (r <= 0)]
    conditions += [absolute(r) > draw(small(0, 1)), budget - absolute(r) > epsilon]
    if d is not None:
        conditions += [d > 0, d >= 0, absolute(d) > epsilon, r > d, r >= -absolute(d), r * d > 0, r + d <= budget]
    c = draw(st.sampled_from(conditions))
    if draw(st.integers(0, 3)) == 0:
        other = draw(st.sampled_from(conditions))
        c = draw(st.sampled_from([c & other, c | other, ~c]))
    return where(c, draw(gates(depth - 1, base)), draw(gates(depth - 1, base)))


@examples(70)
@given(gates(), st.sampled_from([log_ratio(), ratio_deviation(), signed_log_ratio()]))
def test_random_gates_on_tokens(formula, split):
    check(one(formula, split), sizes=(1, 1, 1))


@examples(40)
@given(
    gates(base=density(trajectory)), st.sampled_from([log_ratio(scale=1 / zoo.T), signed_log_ratio(scale=1 / zoo.T)])
)
def test_random_gates_that_read_a_coarser_density(formula, split):
    check(two(inner=Gate(formula), split=split, objective=trajectory_mean()), sizes=(1, 2, 3))


# ---------------------------------------------------------------- decompositions


@st.composite
def decompositions(draw):
    g, plus, minus = gated(""), gated("+"), gated("-")
    c = draw(st.sampled_from([Fraction(1), Fraction(2), Fraction(-1), Fraction(1, 2)]))
    e = draw(st.sampled_from([c, 1 / c, c, 1]))
    if draw(st.booleans()):
        f = draw(
            st.sampled_from([c * x, c * expm1(x), where(x > 0, c * x, x), where(x >= 0, x, c * x), x * x / x, tanh(x)])
        )
        back = draw(
            st.sampled_from([
                exp(g / e), 1 + g / e, exp(where(g > 0, g / e, g)), exp(g) * e, exp(g * (e * e)),
                where(g > 0, exp(g / e), exp(g)), exp(absolute(g) / e), exp(g / e + g * g - g * g),
            ])
        )  # fmt: skip
        return Decomposition({"": f}, back)
    owners = [x >= 0, x > 0, (x >= 0) & (weight > 1), (x > 0) | (weight < 1)]
    up = where(draw(st.sampled_from(owners)), c * x, 0)
    down = where(draw(st.sampled_from(owners)), 0, draw(st.sampled_from([-c * x, c * x, -x])))
    if draw(st.booleans()):
        down = where(x < 0, -c * x, 0)
    back = draw(
        st.sampled_from([exp((plus - minus) / e), exp((plus + minus) / e), exp(plus / e), exp(maximum(plus, minus))])
    )
    return Decomposition({"+": up, "-": down}, back)


@examples(60)
@given(decompositions(), st.sampled_from([clip_gate(epsilon), identity_gate(), Gate(tanh(residual))]))
def test_random_decompositions(split, gate):
    check(one(gate, split), sizes=(1, 1, 1, 1))


# ---------------------------------------------------------------- everything at once


@st.composite
def hierarchies(draw):
    levels = CHAIN[: draw(st.integers(1, 4))]
    kernels = []
    for a, b in zip(levels, levels[1:], strict=False):
        if draw(st.integers(0, 5)) == 0:
            kernels.append(draw(linear_kernels(a, b))[0])
        else:
            kernels.append(draw(st.sampled_from(right_kernels(a, b))))
    made = {}
    for s in levels:
        own = Parameter(f"C_{s.name}", default=0.2)
        coarse = levels[-1]
        options = [
            identity_gate(),
            clip_gate(own),
            aggregate_gate(own, rollback=count(token)),
            Gate(own * tanh(residual / own)),
        ]
        options += [clip_gate(own).per(1 / count(token, over=s)) if s != token else clip_gate(own).per(own)]
        if s != coarse:
            options.append(Gate(clip(residual, -own - density(coarse) ** 2, own + density(coarse) ** 2)))
        if draw(st.integers(0, 4)) == 0:
            options = [Gate(draw(gates(1, density(coarse) if s != coarse else None)))]
            assume(s in (token, trajectory) or advantage not in set(atoms(options[0].expression)))
        made[s] = draw(st.sampled_from(options))
    scale = draw(
        st.sampled_from(
            [None, 1 / count(token, over=levels[-1]), 1 / count(token, over=levels[min(1, len(levels) - 1)])]
        )
    )
    split = draw(st.sampled_from([log_ratio, signed_log_ratio, ratio_deviation]))
    return Hierarchy(
        name="random",
        fibrations=[
            Fibration(a, b, kernel=MarkovKernel(k)) for a, b, k in zip(levels, levels[1:], kernels, strict=False)
        ],
        gates=made,
        decomposition=split() if scale is None else split(scale=scale),
        objective=draw(st.sampled_from([token_mean(), trajectory_mean()])),
    )


@examples(20)
@given(hierarchies())
def test_random_hierarchies(h):
    found = check(h, sizes=(1, 2, 3) if len(h.order) < 4 else (1, 2))
    if found.ok and len(h.order) > 1:
        _agrees_with_the_interpreter(h)


def _agrees_with_the_interpreter(h):
    """The dense operator of eq:fgh_gating and the lowered program, on one tree."""
    world = list(brute.worlds_for(h, (4,)))[-1]
    rng = random.Random(1)
    xs = [Fraction(rng.randint(-20, 20), 32) for _ in range(world.size(token))]
    dense = world.ratios(xs, [Fraction(1)] * len(xs))
    assert [float(v) for v in dense] == pytest.approx(list(Interpreter(world).ratio(xs)), rel=1e-9)


def test_right_ones_are_never_undecided():
    """Every chain of additive measures, up to four strata, with every gate that a function makes, is proved."""
    for levels in (CHAIN[:1], CHAIN[:2], CHAIN):
        for first in range(2):
            pairs = list(zip(levels, levels[1:], strict=False))
            kernels = [right_kernels(a, b)[min(first, i)] for i, (a, b) in enumerate(pairs)]
            for split in (log_ratio(), signed_log_ratio()):
                gate = [clip_gate(epsilon), aggregate_gate(budget, rollback=count(token))][first]
                h = over(levels, kernels).replace(gates=dict.fromkeys(levels, gate), decomposition=split)
                found = h.verify()
                assert found.ok, found
                assert all(v.status == "proved" for v in found.verdicts)


def test_few_are_undecided():
    """Over random gates, the procedure says 'undecided' of at most one in four."""
    rng = random.Random(5)
    counts = {"proved": 0, "refuted": 0, "undecided": 0}
    leaves = [
        residual,
        2 * residual,
        clip(residual, -epsilon, budget),
        residual + residual**2,
        absolute(residual),
        tanh(residual),
    ]
    conditions = [
        residual > 0,
        residual <= 0,
        absolute(residual) <= epsilon,
        advantage >= 0,
        residual > epsilon,
        budget > residual,
    ]
    for _ in range(80 if ALL else 40):
        formula = where(
            rng.choice(conditions),
            rng.choice(leaves),
            where(rng.choice(conditions), rng.choice(leaves), rng.choice(leaves)),
        )
        found = one(formula, log_ratio()).verify()
        counts[status(found, "identity", "gate on token")] += 1
    assert counts["undecided"] <= 20
    assert min(counts["proved"], counts["refuted"]) >= 8
