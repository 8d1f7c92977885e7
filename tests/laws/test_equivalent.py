"""Whether two losses are the same: equal and different pairs, each against brute force in rationals."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import pytest
import sympy
from fuzz.judges.pairs import shows, told_apart
from hierarchies import loss_pairs_with_weights
from hierarchies.loss_pairs import (
    DIFFERENT,
    LENGTH,
    SAME,
    C,
    Pair,
    dapo,
    epsilon,
    fiberpo,
    geometric,
    grpo,
    gspo,
    plain,
    ppo,
    prompt_group,
    sapo,
    token,
    trajectory,
    truly_ppo,
)
from support import OF_EVERY_KIND
from thorough import some

from fibration import (
    Attribute,
    Gate,
    LawError,
    Objective,
    Parameter,
    ParameterError,
    SpecError,
    Stratum,
    absolute,
    advantage,
    clip,
    clip_gate,
    count,
    equal,
    equivalent,
    exp,
    identity_gate,
    largest,
    load,
    log_prob,
    maximum,
    mean,
    minimum,
    one,
    policies,
    residual,
    same,
    token_mean,
    where,
)
from fibration.language.atoms import Reading
from fibration.language.conditions import condition
from fibration.language.expressions import as_expression
from fibration.language.fixed import Here, at_infinity, with_declared
from fibration.language.pairs import pair
from fibration.language.sympy_bridge import symbol
from fibration.language.traversal import desugar
from fibration.laws.equivalent.same_loss import is_the_same, same_loss
from fibration.laws.equivalent.search import FEW, difference, has_batches
from fibration.laws.law import Proved, Unknown
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.feasible import feasible, normal


@functools.cache
def verdict(name: str):
    p = {**SAME, **DIFFERENT}[name]
    (found,) = equivalent(p.first, p.second, p.when, parameters=p.parameters).verdicts
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("name", SAME)
def test_equal_losses_are_proved_the_same(name):
    assert verdict(name).status == "proved"
    assert not told_apart(SAME[name])


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(DIFFERENT, 2))
def test_different_losses_are_refuted_by_a_batch(name):
    found = verdict(name)
    assert found.status == "refuted"
    shows(found.counterexample, DIFFERENT[name])


@pytest.mark.sampled
@pytest.mark.parametrize("name", OF_EVERY_KIND)
def test_every_shipped_loss_is_the_same_as_itself(name):
    """The name and the laws that it gives up do not matter."""
    h = load(name)
    assert is_the_same(pair(h, h.replace(name="other")))


def test_a_refusal_contains_both_coefficients():
    report = equivalent(grpo, dapo)
    assert not report.ok
    with pytest.raises(LawError, match="'grpo' is not the same loss as 'dapo'") as caught:
        report.raise_for_status()
    assert "on a batch of 2 trajectories with 1 and 2 tokens" in str(caught.value)
    assert "token 1 has the coefficient 1/2 in 'grpo' and 1/3 in 'dapo'" in str(caught.value)
    told = report.to_dict()["verdicts"][0]["counterexample"]
    assert told["hierarchy"]["parents"]["token"] == {"trajectory": [0, 1, 1]}


@pytest.mark.parametrize(
    ("first", "second", "when", "said"),
    [
        ("gspo", "gspo_token", None, "(12 compared); both read the same means (token_log_ratio over trajectory, each "
         "token weighed by 1/count(token, over=trajectory))"),
        ("grpo", "dapo", "equal(count(token, over=trajectory))", "the same function of the token's own numbers; R, F and μ"),
    ],
)  # fmt: skip
def test_a_proof_says_which_quantities_it_matched(first, second, when, said):
    (verdict,) = equivalent(load(first), load(second), when).verdicts
    assert said in verdict.argument


def test_the_heading_of_a_comparison_names_both_losses():
    """The heading says neither verified nor refused. Coefficients with an exponential have fifty digits."""
    found = equivalent(gspo, dapo)
    first, second, *_ = str(found).splitlines()
    assert first == "gspo: not the same loss as 'dapo'"
    assert second.startswith("  ✗ equivalent       'dapo': the declarations differ in strata: trajectory, token against")
    (same,) = equivalent(gspo, gspo.replace(name="copy"), timeout=60).verdicts
    assert not same.found
    assert str(equivalent(gspo, gspo)).startswith("gspo: the same loss as 'gspo'\n")
    values = found.to_dict()["verdicts"][0]["counterexample"]["values"]
    assert all(len(c) == len("0.") + 50 for c in values["coefficients"])
    assert values["ratios"] == ["1", "1/3"]
    late = equivalent(gspo, dapo, timeout=1e-9)
    assert str(late).startswith("gspo: not shown to be the same loss as 'dapo'\n")


@pytest.mark.sampled
@pytest.mark.parametrize("factor", [Fraction(1, 2), Fraction(3, 7), Fraction(64)])
@pytest.mark.parametrize("name", ["dapo", "grpo_k3", "fiberpo"])
def test_a_multiple_of_a_loss_is_named(name, factor):
    loss = load(name)
    scaled = loss.replace(name="scaled", objective=loss.objective.with_parts(weight=factor * loss.objective.weight))
    (found,) = equivalent(scaled, loss).verdicts
    assert (found.status, found.factor) == ("refuted", factor)
    assert f"every coefficient is {factor} times that of '{name}' (proved)" in found.found
    assert found.to_dict()["factor"] == str(factor)
    (other,) = equivalent(loss, scaled).verdicts
    assert other.factor == 1 / factor
    if loss.penalties:  # a penalty alone is no multiple of the loss
        heavier = loss.replace(penalties={n: 2 * p.formula for n, p in loss.penalties.items()})
        assert equivalent(heavier, loss).verdicts[0].factor is None


def test_what_is_no_multiple_is_not_called_one():
    """On one batch of one row the losses are multiples of each other, and on others they are not."""
    lengths = dapo.replace(objective=Objective(1 / (2 * count(token, over=trajectory))))
    for first, second in ((grpo, dapo), (gspo, grpo), (lengths, dapo), (dapo, lengths)):
        (found,) = equivalent(first, second).verdicts
        assert found.status == "refuted" and found.factor is None and "factor" not in found.to_dict()
        assert {p.name for p in found.parts if p.differs} == {p["part"] for p in found.to_dict()["parts"]} != set()


def test_a_comparison_out_of_time_is_undecided():
    (found,) = equivalent(fiberpo, load("fiberpo_domain"), timeout=1e-9).verdicts
    assert found.status == "undecided"
    assert found.found.startswith("out of time")


PROJECTED = load("fiberpo_crossed")


def test_projections_are_the_same_only_if_their_formulas_are_equal():
    clipped = PROJECTED.replace(gates={**PROJECTED.gates, token: clip_gate(PROJECTED.parameters["epsilon"])})
    assert isinstance(same_loss(pair(PROJECTED, clipped)), Unknown)
    assert difference(pair(PROJECTED, clipped), {1: 1}) is None
    (found,) = equivalent(PROJECTED, clipped, when=[advantage >= 0]).verdicts
    assert (found.status, found.internal_error) == ("undecided", False)


old, rollout = policies("old rollout")
RHO = exp(log_prob(old) - log_prob(rollout))
CAP = Parameter("cap", default=2)
TRUNCATED = token_mean().weigh(minimum(RHO, CAP))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "objective",
    [
        token_mean(),
        token_mean().weigh(minimum(RHO, 2 * CAP)),
        TRUNCATED.weigh(RHO),
        TRUNCATED.keep(RHO <= 2),
        TRUNCATED.score(),
    ],
)
def test_losses_with_different_weights_or_conditions_differ(objective):
    """Weights, their parameters and conditions each make another loss."""
    mine, yours = (dapo.replace(name=n, objective=o) for n, o in (("mine", TRUNCATED), ("yours", objective)))
    assert not is_the_same(pair(mine, yours))
    assert equivalent(mine, yours).verdicts[0].status != "proved"


def test_the_order_of_weights_does_not_matter():
    both = [dapo.replace(objective=o) for o in (TRUNCATED.weigh(RHO), token_mean().weigh(RHO).weigh(minimum(RHO, CAP)))]
    assert is_the_same(pair(*both))


def test_a_fixed_parameter_is_fixed_in_weights_conditions_and_statistics():
    """This includes formulas that a condition reads at other tokens."""
    filtered = dapo.replace(objective=TRUNCATED.keep(largest(minimum(RHO, CAP), over=trajectory) <= CAP + 1))
    both = pair(filtered, filtered.replace(name="other"), parameters={"cap": 2})
    assert not any("cap" in h.parameters for h in both)
    (kept,) = both.first.objective.kept
    assert kept.condition == (largest(minimum(RHO, 2), over=trajectory) <= as_expression(2) + 1)


CISPO = load("cispo")
below, above = CISPO.parameters["epsilon_low"], CISPO.parameters["epsilon_high"]


def absolute_bound(name):
    """CISPO with a bound on the ratio itself."""
    return CISPO.replace(name="ours", gates={token: Gate(clip(residual, -below, Parameter(name) - 1))})


ABSOLUTE = absolute_bound("bound")


def test_a_parameter_may_be_a_formula_in_the_other_losss_parameters():
    """CISPO's bound is the ceiling itself in one trainer, and its distance from 1 in another."""
    written = {"bound": "1 + epsilon_high"}
    for first, second in ((ABSOLUTE, CISPO), (CISPO, ABSOLUTE)):
        both = pair(first, second, parameters=written)
        assert set(both.first.parameters) == set(both.second.parameters) == {"epsilon_low", "epsilon_high"}
        assert both.ranges == (1 + above > 0,)
        assert equivalent(first, second, parameters=written).ok


def test_a_parameter_may_be_a_formula_in_a_parameter_of_the_same_name():
    """The name is the first loss's parameter."""
    same_name, written = absolute_bound("epsilon_high"), {"epsilon_high": "1 + epsilon_high"}
    assert pair(same_name, CISPO, parameters=written).first.gates[token].expression == clip(
        residual, -below, 1 + above - 1
    )
    found = equivalent(same_name, CISPO, parameters=written)
    assert found.ok and "with epsilon_high = 1 + epsilon_high" in str(found)
    assert not equivalent(same_name, CISPO).ok
    assert not equivalent(same_name, CISPO, parameters={"epsilon_high": "2 + epsilon_high"}).ok


def test_a_formula_for_a_parameter_is_compared_within_the_parameters_range():
    """A bound above 1 that is given as 0.9 + epsilon is compared where epsilon is above 0.1."""
    above_1 = CISPO.replace(gates={token: Gate(minimum(residual, Parameter("bound", lower=1) - 1))})
    anything = CISPO.replace(gates={token: Gate(minimum(residual, Parameter("bound") - 1))})
    wide = CISPO.replace(gates={token: Gate(where(epsilon > 0.1, minimum(residual, epsilon - 0.1), 0))})
    assert equivalent(above_1, wide, parameters={"bound": "0.9 + epsilon"}).ok
    assert not equivalent(anything, wide, parameters={"bound": "0.9 + epsilon"}).ok


# ---------------------------------------------------------------- what does not match


@pytest.mark.parametrize(
    ("first", "second", "given", "said"),
    [
        (truly_ppo, ppo, {}, "epsilon, alpha only in 'truly_ppo'; epsilon_high, epsilon_low, ceiling only in 'ppo'"),
        (load("fiberpo_modal"), ppo, {}, "image_token, text_token, and token"),
        (gspo, geometric.replace(rows=prompt_group), {}, "use different row strata"),
        (grpo, dapo, {"when": "advantage=domain"}, "no stratum 'domain'"),
        (grpo, dapo, {"when": "equal(residual)"}, "equal takes the advantage, or a count"),
        (grpo, dapo, {"when": "residual > 0"}, "reads residual"),
        (grpo, dapo, {"when": "same(old, rollout)"}, "means nothing here"),
        (grpo, dapo, {"when": same(old, rollout)}, "names the policy rollout"),
        (grpo, dapo, {"when": log_prob(rollout) < -1}, "names the policy rollout"),
        (grpo, dapo, {"when": "same(old, old)"}, "old is the same as itself"),
        (grpo, dapo, {"when": "same(old, 1)"}, "same takes two policies"),
        (grpo, dapo, {"parameters": {"beta": "1 + epsilon_low"}}, "there is no parameter 'beta'"),
        (grpo, dapo, {"parameters": {"epsilon_low": "1 + beta"}}, "'beta' means nothing here"),
        (grpo, dapo, {"parameters": {"epsilon_low": "epsilon_low < 1"}}, "cannot be epsilon_low < 1"),
        (dapo, fiberpo, {"parameters": {"epsilon_low": "2 * C_trajectory"}}, "that have one value"),
        (grpo, dapo, {"when": "count(token) > 1"}, "name the stratum"),
        (grpo, dapo, {"when": "advantage"}, "is no condition"),
        (grpo, dapo, {"when": one(prompt_group)}, "names the stratum prompt_group"),
        (grpo, dapo, {"parameters": {"beta": 1}}, "there is no parameter 'beta'"),
        (grpo, dapo, {"parameters": {"beta": "epsilon_low"}}, "cannot be matched"),
        (grpo, dapo, {"parameters": {"epsilon_low": math.inf}}, "strictly inside (0, 1)"),
        (sapo, plain, {"parameters": {"tau_pos": math.inf}}, "infinite"),
        (grpo, fiberpo, {"parameters": {"epsilon_low": "C_trajectory", "epsilon_high": "epsilon"}}, "per channel"),
    ],
)  # fmt: skip
def test_hierarchies_that_do_not_match_are_an_error(first, second, given, said):
    with pytest.raises((SpecError, ParameterError)) as caught:
        equivalent(first, second, **given)
    assert said in str(caught.value)


def test_a_hierarchy_that_breaks_a_foundation_is_not_compared():
    wrong = gspo.replace(name="wrong", objective=Objective(1 / (count(token, over=trajectory) - 1)))
    with pytest.raises(SpecError, match="'wrong' breaks the law 'objective'"):
        equivalent(wrong, gspo)


N, GROUPED, ROWS = (f"count({a}, over={b})" for a, b in (("token", "trajectory"), ("token", "prompt_group"), ("trajectory", "prompt_group")))  # fmt: skip
IMPOSSIBLE = (
    "advantage >= 0; advantage < 0", f"{N} > 1; {N} < 2", f"{N} >= 3/2; {N} <= 7/4", f"{N}**2 > 4; {N} < 3",
    f"2*{GROUPED} + 4*{ROWS} >= 7; 2*{GROUPED} + 4*{ROWS} <= 7", f"{N} > 3; {GROUPED} < 4", f"{GROUPED} < {ROWS}",
    f"one(trajectory); {ROWS} > 1", "log_prob(current) > 0", "log_prob(old) > -1; token_log_ratio > 1",
    "log_prob(current) > log_prob(old); log_prob(current) < log_prob(old)", "exp(token_log_ratio) <= 0",
    "same(old, rollout); log_prob(old) > log_prob(rollout)", "on_policy; abs(token_log_ratio) > 0",
    "same(old, rollout); same(rollout, current); token_log_ratio > 0", "bounded > 2", "share > 1; epsilon > 0",
)  # fmt: skip
RARE = (
    f"{N} > 1000", f"{N}*{ROWS} > 1000; {N} < 11", f"{GROUPED} <= 3; {GROUPED} >= 3; {ROWS} >= 2", "advantage > 3; advantage < 301/100",
    "epsilon > 1000", "epsilon >= 10*share; epsilon <= 10*share", "bounded > 199/100", "log_prob(old) > -1/10",
    "exp(token_log_ratio) >= 6/5; exp(token_log_ratio) <= 6/5", "token_log_ratio > 20; log_prob(current) > -1/1000",
    "same(rollout, current); log_prob(rollout) > log_prob(old) + 1", "advantage*advantage <= 0",
)  # fmt: skip


def weighed(number, name="weighed"):
    """A loss that reads everything that the conditions name, of which nothing counts."""
    bound, share = Parameter("epsilon", default=0.2), Parameter("share", default=0.5, upper=1)
    bounded = Attribute("bounded", on=token, upper=2)
    read = bound + share + bounded + log_prob(old) - log_prob(rollout)
    return plain.replace(name=name, objective=token_mean().weigh(number + 0 * read), groups=[prompt_group])


@pytest.mark.sampled
@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_conditions_that_no_batch_meets_are_an_error(text):
    conditions = text.split("; ")
    for second in (weighed(2, "same"), weighed(3)):
        with pytest.raises(SpecError, match="no batch meets the condition") as caught:
            equivalent(weighed(2), second, ["epsilon < 1000", *conditions])
        named = [c for c in conditions if c in caught.value.what]
        assert "epsilon < 1000" not in caught.value.what and named == conditions[: len(named)]


@pytest.mark.sampled
@pytest.mark.parametrize("text", RARE)
def test_conditions_that_few_batches_meet_are_no_error(text):
    same_weight, other = (pair(weighed(2), weighed(w), text.split("; ")) for w in (4 / as_expression(2), 3))
    assert isinstance(same_loss(same_weight), Proved) and not isinstance(same_loss(other), Proved)
    if text not in (RARE[0], RARE[1], RARE[-1]):  # of many tokens, or all advantages are 0
        assert difference(other, FEW, any_size=True) is not None


def test_nothing_is_proved_where_no_batch_was_found():
    """Every trajectory has two tokens, so a group has two per trajectory. No proof says so, and no batch is found."""
    both = pair(weighed(2), weighed(3), [f"{N} > 1", f"{GROUPED} < 2*{ROWS}"])
    found = same_loss(both)
    assert not has_batches(both) and isinstance(found, Unknown)
    assert "no batch was found that meets the conditions" in found.reason


def test_a_formula_that_a_parameter_never_is_is_an_error():
    one, other = (plain.replace(gates={token: clip_gate(p)}) for p in (epsilon, Parameter("wide")))
    with pytest.raises(SpecError, match=r"no batch meets the condition 1 \+ wide < 1"):
        equivalent(one, other, parameters={"epsilon": "1 + wide"})


PER_DOMAIN = Parameter("c", default=0.5, on=Stratum("domain"))
OF_PARAMETERS = {
    "its mean over the batch": (mean(PER_DOMAIN, over=Stratum("batch")), (), "refuted"),
    "its mean over a domain": (mean(PER_DOMAIN, over=Stratum("domain")), (), "proved"),
    "its mean over the one domain": (mean(PER_DOMAIN, over=Stratum("batch")), "one(domain)", "proved"),
    "twice its half": (2 * (PER_DOMAIN / 2), (), "proved"),
    "one value": (Parameter("c", default=0.5), (), "refuted"),
    "one value for one domain": (Parameter("c", default=0.5), "one(domain)", "proved"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_a_parameter_on_a_stratum_has_a_value_per_element(name):
    other, when, status = OF_PARAMETERS[name]
    one, two = (plain.replace(name=n, groups=[Stratum("domain")], objective=token_mean().weigh(w)) for n, w in (("one", PER_DOMAIN), ("two", other)))  # fmt: skip
    (found,) = equivalent(one, two, when).verdicts
    assert found.status == status
    if status == "refuted":
        concrete = found.counterexample.concrete
        assert len(set(concrete.parameters[PER_DOMAIN])) > 1 and " per domain" in found.counterexample.text
        shows(found.counterexample, Pair(one, two))


def test_budgets_per_domain_are_not_one_budget():
    per_domain = load("attenuated_domain")
    free = {p: p.model_copy(update={"on": None}) for p in per_domain.parameters.values()}
    one_budget = with_declared(per_domain, free).replace(name="one_budget")
    assert difference(pair(per_domain, one_budget), {2: 300}, any_size=True) is not None
    assert isinstance(same_loss(pair(per_domain, one_budget, "one(domain)")), Proved)


def test_a_budget_of_a_gate_has_a_value_per_element_of_the_gate():
    """So `on=` the stratum of the gate says nothing new."""
    h = load("fiberpo_domain")
    budget = h.parameters["C_domain"]
    said = with_declared(h, {budget: budget.model_copy(update={"on": Stratum("domain")})})
    assert is_the_same(pair(h, said))


def test_conditions_print_as_their_text():
    names = {s.name: s for s in (token, trajectory, rollout)}
    for text in (
        "equal(advantage, on=trajectory)",
        "equal(count(token, over=trajectory))",
        "one(trajectory)",
        "same(old, rollout)",
        "log_prob(rollout) < log_prob(old)",
        "on_policy",
    ):
        assert repr(condition(text, names)) == text
    assert condition("advantage=trajectory", names) == equal(advantage, on=trajectory)
    assert condition("advantage >= 0", names) == (advantage >= 0)


@pytest.mark.parametrize(
    ("formula", "limit"),
    [
        (clip(residual, -C, C), residual),
        (where((absolute(residual) <= C) & (advantage > 0), residual, 0), where(advantage > 0, residual, 0)),
        (where((residual > C) | (advantage > 0), 1, 2), where(advantage > 0, 1, 2)),
        (residual + 1 / C, residual + 0),
        (minimum(residual, 2 * C - 1), residual),
        (exp(-C) * residual, 0 * residual),
        (maximum(-C / 3, residual), residual),
    ],
)
def test_an_infinite_budget_leaves_the_formula_without_its_bound(formula, limit):
    assert desugar(at_infinity(formula, {C: 1}, Here(gspo.shape))) == desugar(limit)


def test_contradictory_sign_conditions_hold_nowhere():
    a, b = (symbol(Reading(n)) for n in "ab")
    c = symbol(Parameter("c", lower=1))
    known = Assumptions(gspo.shape)
    low, high = frozenset({-1}), frozenset({1})
    assert feasible({a - b: high, b - c: low}, known)
    assert not feasible({a - b: high, b - a: frozenset({0, 1})}, known)
    assert not feasible({a - b: high, b - c: high, a - 1: low}, known)
    assert feasible({a - b: high, b - c: high, a - 2: low}, known)


def test_a_condition_keeps_its_sign_when_positive_factors_are_dropped():
    x, t, c = symbol(Reading("x")), symbol(LENGTH), symbol(Parameter("c"))
    known = Assumptions(gspo.shape)
    above, below = frozenset({1}), frozenset({-1})
    for given, signs in (
        (x - c, above),
        (-2 * t * (x - c), below),
        ((c - x) / t, below),
        ((x - c) / (-3 * t), below),
    ):
        value, allowed = normal(given, above, known)
        assert (value, allowed) in ((x - c, signs), (c - x, frozenset(-s for s in signs)))
    assert normal(sympy.exp(x) - c, above, known) == (x - sympy.log(c), above)


PROVED_BY_NOTHING = ["grpo and dapo", "gspo and its score", "flat at the bound itself", "a trajectory's ratio on policy"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*PROVED_BY_NOTHING, *some(loss_pairs_with_weights.DIFFERENT, 3)])
def test_different_losses_are_never_proved_the_same(name):
    """The proof alone is tried, also for pairs whose difference the search did not find at first."""
    p = {**loss_pairs_with_weights.DIFFERENT, **DIFFERENT}[name]
    assert isinstance(same_loss(pair(p.first, p.second, p.when, p.parameters)), Unknown)


def test_the_share_of_a_mean_in_a_coefficient_is_compared():
    """On policy a token's own log ratio adds the same in both losses. Only one loss has the trajectory's mean."""
    twice = gspo.replace(name="twice", gates={trajectory: Gate(2 * residual), token: identity_gate()})
    assert isinstance(same_loss(pair(twice, plain, "on_policy")), Unknown)
    once = geometric.replace(gates={**twice.gates, trajectory: identity_gate()})
    assert isinstance(same_loss(pair(once, plain, "on_policy")), Proved)


def test_losses_with_different_penalties_or_advantages_differ() -> None:
    current, reference = policies("current reference")
    x = log_prob(current) - log_prob(reference)
    k2 = grpo.replace(penalties={"kl": x**2 / 2})
    k3 = grpo.replace(penalties={"kl": exp(-x) - 1 + x}, gives_up={"kl_gradient": "as it was published"})
    assert equivalent(k2, k2.replace(name="other", penalties={"divergence": x**2 / 2})).ok
    for a, b in ((k2, k3), (k2, grpo)):
        assert equivalent(a, b).verdicts[0].status == "refuted"
    with pytest.raises(SpecError, match="'rloo' makes its advantages of rewards") as caught:
        equivalent(load("rloo"), grpo)
    assert "replace(advantages=None)" in str(caught.value)


def test_rows_are_rows_under_two_names() -> None:
    """The rows of both losses are the rows of one batch; a loss that has other strata of these names is refused."""
    episode = Stratum("episode")
    (verdict,) = equivalent(grpo, grpo.replace(rows=episode, objective=token_mean())).verdicts
    assert (verdict.status, verdict.subject) == ("refuted", "'grpo' with trajectory ↔ episode")
    assert equivalent(dapo, dapo.replace(rows=episode)).ok
    with pytest.raises(SpecError, match="use different row strata"):
        equivalent(gspo, geometric.replace(rows=prompt_group))
