"""Both sides of every rewrite rule have the same value on its domain, and constants keep their value."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from fibration.compiler.interpret import MEANING
from fibration.compiler.ir import CONDITIONS, Const, Map, Push, Scalar, arg, const, scalar, with_arguments
from fibration.compiler.rules import ANY, CHOICES, CONSTANTS, ROUNDED, RULES, SHARPER, C, D, rewrite

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.25, 1e-300, 1e300, math.inf, -math.inf, math.nan]
FREE = [arg(i) for i in range(3)]  # what stands for numbers in RULES: X, Y, Z


def evaluated(body, values):
    """`body` and everything on the way to it, float64 or bool; of a choice, only what was chosen counts on the way."""
    if body.op == "arg":
        return values[body], np.ones(len(values[body]), bool)
    if body.op == "const":
        size = len(next(iter(values.values())))
        return np.full(size, float(body.value)), np.ones(size, bool)
    parts = [evaluated(a, values) for a in body.args]
    value = MEANING[body.op](*(v for v, _ in parts))
    fine = [f for _, f in parts]
    clean = fine[0] & np.where(parts[0][0], fine[1], fine[2]) if body.op == "select" else np.logical_and.reduce(fine)
    tame = np.ones(len(value), bool) if body.op in CONDITIONS else np.isfinite(value) & (np.abs(value) > 1e-290)
    return value, clean & tame


def points():
    """Special and random numbers for X, Y and Z, with either outcome of C and D."""
    rng = np.random.default_rng(7)
    numbers = np.array(list(itertools.product(SPECIAL, repeat=3)))
    numbers = np.concatenate([numbers, rng.normal(size=(2000, 3)) * 10.0 ** rng.integers(-8, 9, (2000, 3))])
    numbers = np.tile(numbers, (4, 1))
    sign = np.arange(len(numbers)) * 4 // len(numbers)
    return {**dict(zip(FREE, numbers.T, strict=True)), C: sign % 2 == 0, D: sign < 2}


def instances(rule):
    """The pattern with constants for what stands for constants, and with choices between them where these may stand."""
    wanted = sorted({s for s in leaves(rule.before) if s in (*CONSTANTS, *CHOICES)}, key=lambda s: s.value)
    choices = [const(v) for v in (0.0, -1.0, 3.0, math.inf, math.nan)]
    choices.append(scalar("select", D, const(0.5), scalar("select", C, const(-1.0), const(3.0))))
    for chosen in itertools.product(*([c for c in choices if c.op == "const" or s in CHOICES] for s in wanted)):
        table = [arg(i) for i in range(8)]
        for s, c in zip(wanted, chosen, strict=True):
            table[s.value] = c
        yield with_arguments(rule.before, table)


def leaves(s: Scalar):
    return {s} if not s.args else set().union(*map(leaves, s.args))


def test_no_two_rules_rewrite_the_same_pattern():
    assert len({rule.before for rule in RULES}) == len(RULES)


@pytest.mark.sampled
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.before))
def test_a_rule_keeps_every_value_on_its_domain(rule):
    values = points()
    compared = 0
    for before in instances(rule):
        after = rule.apply(before)
        assert after is not None
        assert after is not before
        with np.errstate(all="ignore"):
            (old, tame), (new, _) = evaluated(before, values), evaluated(after, values)
        chosen = np.ones(len(old), bool)
        if rule.holds != ANY:
            chosen = ~np.isnan(old.astype(float)) & ~np.any([np.isnan(values[v]) for v in FREE], axis=0)
        if rule.holds == ROUNDED:
            chosen &= tame & np.isfinite(new)
            new, old = new[chosen], old[chosen]
            assert (np.abs(new - old) <= 4e-16 * np.abs(old)).all()
        elif rule.holds == SHARPER:
            near, far = chosen & np.isfinite(old), chosen & ~np.isfinite(old)
            assert (np.abs(new[near] - old[near]) <= 4e-16 * (1 + np.abs(old[near]))).all()
            np.testing.assert_array_equal(new[far], old[far])
        else:
            np.testing.assert_array_equal(new[chosen], old[chosen])  # NaN is NaN here, and -0.0 is 0.0
        compared += chosen.sum()
    assert compared > 1000


@pytest.mark.parametrize("rule", [r for r in RULES if r.holds != ANY], ids=lambda rule: str(rule.before))
def test_the_domain_of_a_rule_is_as_large_as_possible(rule):
    """Somewhere outside of its claim, each of the others does change a value."""
    values = points()
    with np.errstate(all="ignore"):
        old, new = (evaluated(b, values)[0].astype(float) for b in (rule.before, rule.apply(rule.before)))
    assert not np.array_equal(old, new, equal_nan=True)


@pytest.mark.sampled
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.before))
def test_the_result_of_a_rule_is_not_rewritten_again(rule):
    for before in instances(rule):
        made = rewrite(before)
        assert rewrite(made) is made


# ---------------------------------------------------------------- constants


def test_a_zero_keeps_its_sign_and_nan_is_nan():
    assert const(-0.0) is not const(0.0)
    assert math.copysign(1, const(-0.0).value) == -1
    assert math.copysign(1, const(0.0).value) == 1
    assert Const(-0.0, "token") is not Const(0.0, "token")
    assert const(math.nan) is const(-math.nan)
    assert const(math.inf) is not const(-math.inf)
    assert const(1) is const(1.0)
    map_ = Map(scalar("mul", arg(0), const(-0.0)), (Push("a", "b", Const(-0.0, "a")),))
    assert map_ is Map(scalar("mul", arg(0), const(-0.0)), (Push("a", "b", Const(-0.0, "a")),))


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["-0.0", "0.0"])
def test_constants_do_not_depend_on_earlier_programs(first):
    code = (
        "from fibration.compiler.ir import Const\n"
        f"kept = Const({first}, 'a')\n"
        "print(Const(-0.0, 'a').value, Const(0.0, 'a').value)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-0.0", "0.0"]
