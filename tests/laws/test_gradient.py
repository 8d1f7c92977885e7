"""The gradient on policy: what is said of it, and that refuted verdicts fail on their counterexample."""

from fractions import Fraction

import pytest
from hierarchies.builders import one, two
from hierarchies.first_order_specs import SPECS, domain, image, quiver, three, tree
from hierarchies.right import SUBSPACES
from oracles import brute_force, verdicts
from oracles.certified_facts import report
from thorough import some

from fibration import (
    Attribute,
    Gate,
    Parameter,
    advantage,
    after,
    before,
    centred,
    count,
    decomposition,
    density,
    exp,
    gated,
    identity_gate,
    load,
    log_ratio,
    minimum,
    position,
    residual,
    reward,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    where,
    zero_gate,
)
from fibration.language.report import LEFT, Verdict
from fibration.laws import LAWS
from fibration.laws.subject import Subject

token, trajectory = strata("token trajectory")
F, T, x = Fraction, count(token, over=trajectory), token_log_ratio


def gradient(h):
    """Its one verdict, without what is left of it."""
    [verdict] = (v for v in report(h).verdicts if v.law == "gradient" and not v.subject.startswith(LEFT))
    return verdict


# ---------------------------------------------------------------- what is said


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(SPECS, 2, 1))  # test_first_order.py has the others
def test_the_verdict_on_gradient_is_the_expected_one(name):
    spec, verdict = SPECS[name], gradient(SPECS[name].h)
    if name == "a removable singularity":  # lowering takes x·x/x for x; identity refuses the gate
        assert verdict.status == "undecided"
        return
    assert (verdict.subject, verdict.status) == (spec.gradient or "hierarchy", "proved" if spec.gradient else "refuted")
    assert verdict.argument if spec.gradient else verdict.found and verdict.remedy and verdict.counterexample


@pytest.mark.sampled
@pytest.mark.parametrize("name", SUBSPACES)
def test_gradient_is_proved_if_it_holds_for_advantages_constant_on_rows(name):
    """A loss whose gradient is right only for advantages constant on coarser strata is refuted."""
    h, _ = SUBSPACES[name]
    verdict = gradient(h)
    assert bool(verdict.given_up) is (verdict.status != "proved")
    assert verdict.status in ("proved", "refuted")


# ---------------------------------------------------------------- slips in what is shipped

SLIPS = {
    "doubled": lambda g: 2 * g, "dropped": lambda g: 0 * g, "shut above 0": lambda g: minimum(g, 0), "bent": lambda g: g * (1 + g)
}  # fmt: skip
GATES = ["cispo token", "sapo token", "gspo trajectory", "gspo_residual token", "gspo_residual trajectory"]
ON_TOKENS = "gspo_residual token"  # what tokens add beyond their mean may be anything linear
HARMLESS = {(ON_TOKENS, "doubled"), (ON_TOKENS, "dropped"), *((g, "bent") for g in GATES if g != "sapo token")}
HARMLESS |= {("cispo token", slip) for slip in SLIPS}  # 𝒢(1) = 1


@pytest.mark.sampled
@pytest.mark.parametrize(("gate", "slip"), some(((g, s) for g in GATES for s in SLIPS), 3))
def test_a_changed_gate_is_refused_unless_its_gradient_is_still_right(gate, slip):
    name, level = gate.split()
    h = load(name)
    h = h.replace(gates={s: Gate(SLIPS[slip](g.expression)) if s.name == level else g for s, g in h.gates.items()})
    verdict = gradient(h)
    assert verdict.status == ("proved" if (gate, slip) in HARMLESS else "refuted")
    if verdict.status == "refuted":
        brute_force.confirm(h, verdict)


@pytest.mark.sampled
@verdicts.wrong_specs("gradient")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


def test_agreement_for_advantages_per_row_is_not_agreement_for_advantages_per_token():
    """GSPO spreads each token's share over all tokens of its trajectory."""
    token, rows, group = strata("token trajectory prompt_group")
    value, length = Attribute("value", on=token, positive=False), count(token, over=rows)
    for advantages, right in (
        (centred(reward, over=group, leave_one_out=True), True),
        (reward - length, True),
        (reward - value, False),
        (reward - position(over=rows), False),
        (reward + after(reward, over=rows), False),
    ):
        found = load("gspo").replace(groups=[group], advantages=advantages).verify().verdicts
        (verdict,) = (v for v in found if v.law == "gradient")
        assert verdict.status == ("proved" if right else "undecided"), verdict


# ---------------------------------------------------------------- what is left of it

split, plus, minus = gated(""), gated("+"), gated("-")
turning = Parameter("slope", default=1, lower=-1)
turned, half = Gate(-residual), Gate(residual / 2)
log_ratios = log_ratio(scale=1 / T)


def single(density, recovery=None, gate=residual):
    back = exp(split) if recovery is None else recovery
    return one(gate, decomposition(density=density, recovery=back))


def chained(density, recovery):
    return two(split=decomposition(density=density / T, recovery=recovery, scale=1 / T))


def by_sign(above, below):
    back = exp((plus - minus) * T)
    return two(
        split=decomposition(
            plus=where(x >= 0, above, 0) / T, minus=where(x >= 0, 0, below) / T, recovery=back, scale=1 / T
        )
    )


def levels(outer, inner):
    return two(outer=outer, inner=inner, split=log_ratios)


REVERSED = {
    "F": single(-x),
    "F, with the values of a log ratio": single(2 * stop(x) - x),
    "R": single(x, exp(-split)),
    "R, with the values of an exponential": single(x, exp(2 * stop(split) - split)),
    "R of a chain": chained(x, exp((2 * stop(split) - split) * T)),
    "F of a chain": chained(2 * stop(x) - x, exp(split * T)),
    "F for some values of a parameter": single(turning * x + (1 - turning) * stop(x)),
    "F for advantages below 0": single(where(advantage > 0, x, 2 * stop(x) - x)),
    "F below r = 1": single(where(x >= 0, x, 2 * stop(x) - x)),
    "the upper channel": by_sign(2 * stop(x) - x, -x),
    "the lower channel": by_sign(x, x - 2 * stop(x)),
    "a gate": single(x, gate=2 * stop(residual) - residual),
    "all gates": levels(turned, turned),
    "the gate that is left": levels(turned, zero_gate()),
    "rows against their group": three({trajectory: turned}),
    "long rows against their group": three({trajectory: Gate(where(T > 1, -residual, residual))}),
    "the root of a tree": tree({trajectory: turned}),
    "a score": single(x, -exp(split)).replace(objective=token_mean().score()),
}
KEPT = {
    "tokens against their row": levels(zero_gate(), turned),
    "tokens against their row, turned in one branch": tree({image: turned}),
    "half": single(x / 2),
    "nothing": single(stop(x)),
    "no gate": single(x, gate=0 * residual),
    "twice": single(2 * x),
    "half of both levels": levels(half, half),
    "half of long rows": levels(Gate(where(T > 3, residual / 2, residual)), zero_gate()),
    "what rows have in common is dropped": levels(zero_gate(), identity_gate()),
    "a gate that reads a density": levels(identity_gate(), Gate(residual + density(trajectory) / 2)),
    "one channel": by_sign(x, stop(-x)),
    "rows in their groups": three({trajectory: zero_gate()}),
    "twice as much of rows": three({trajectory: Gate(2 * residual)}),
    "one branch of a tree": tree({image: zero_gate()}),
    "domains of a quiver": quiver({domain: zero_gate()}),
}
UNKNOWN = {
    "a value that is not 0 at r = 1": single(x + 1),
    "a prefix of the row": single(x + before(x, over=trajectory)),
}
DIRECTIONS = {
    **{("reversed", n): (h, "refuted") for n, h in REVERSED.items()},
    **{("kept", n): (h, "proved") for n, h in KEPT.items()},
    **{("unknown", n): (h, "undecided") for n, h in UNKNOWN.items()},
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", DIRECTIONS, ids=" ".join)
def test_the_advantage_of_a_row_does_not_lower_its_log_probs(name):
    h, status = DIRECTIONS[name]
    [found] = LAWS["gradient"].decide_rest(Subject(h, []), [Verdict("gradient", "hierarchy", "refuted", "")])
    assert found.status == status
    if status == "refuted":
        brute_force.confirm(h, found)


@pytest.mark.parametrize(
    "name", ["F", "F, with the values of a log ratio", "R", "R, with the values of an exponential"]
)
def test_no_reason_allows_a_full_reversal(name):
    given_up = dict.fromkeys(["first_order", "gradient", "recovery" if len(name) == 1 else "inward"], "on purpose")
    report = REVERSED[name].replace(gives_up=given_up).verify()
    assert [(v.law, v.subject) for v in report.failures if not v.given_up] == [
        ("gradient", "what is left of hierarchy")
    ]
    named = {**given_up, "gradient of what is left of hierarchy": "on purpose"}
    assert REVERSED[name].replace(gives_up=named).verify().ok
