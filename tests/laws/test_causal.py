"""The law causal: a weight or condition that reads later tokens is refuted by a row."""

from dataclasses import replace
from fractions import Fraction

import pytest
from fuzz.dual_numbers import value_of
from fuzz.witnesses import are_close, world_of
from hierarchies import weights_and_masks
from hierarchies.weights_and_masks import RIGHT, C, batch, current, entropy, k, mu, old, one, rho, token, trajectory, x
from oracles.certified_facts import decided
from oracles.counterexample_json import from_json

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    Stratum,
    absolute,
    advantage,
    after,
    before,
    count,
    exp,
    identity_gate,
    largest,
    load,
    log_prob,
    log_ratio,
    mean,
    minimum,
    position,
    some,
    token_mean,
    total,
    uniform,
    where,
)

prompt_group = Stratum("prompt_group")
T = count(weights_and_masks.token, over=trajectory)
first = Attribute("first", on=trajectory, positive=False)


def verdicts(objective, make=one, **more):
    return decided(make(objective, **more), "causal", alone=True)


# What looks ahead.
AHEAD = {
    "the whole trajectory's ratio": mu.weigh(exp(total(k, over=trajectory))),
    "its geometric mean": mu.weigh(exp(mean(k, over=trajectory))),
    "the suffix for the prefix": mu.weigh(exp(after(k, over=trajectory) + k)),
    "how many follow": mu.weigh(1 / (1 + after(1, over=trajectory))),
    "the length": mu.weigh(1 / T),
    "how far along": mu.weigh((1 + position(over=trajectory)) / T),
    "a mean of the batch": mu.weigh(rho / mean(rho, over=batch)),
    "a later entropy": mu.weigh(total(entropy, over=trajectory)),
    "a prefix of means": mu.weigh(exp(before(k - mean(k, over=trajectory), over=trajectory))),
    "a veto": mu.keep(~some(absolute(k) > C, over=trajectory)),
    "a bound far off": mu.keep(largest(k, over=trajectory) < 7),
    "the largest ratio": mu.weigh(exp(largest(x, over=trajectory))),
    "a likely token": mu.keep(largest(log_prob(current), over=trajectory) < -0.1),
    "bad answers": mu.keep((advantage > 0) | (mean(x, over=trajectory) > -C)),
}  # fmt: skip

FINE = {
    "a token's own": mu.weigh(minimum(rho, C)).keep(log_prob(old) > -9),
    "its prefix": mu.weigh(minimum(exp(before(k, over=trajectory) + k), C)),
    "a discounted prefix": mu.weigh(exp(before(x, over=trajectory, discount=Fraction(1, 2)))),
    "a prefix of prefixes": mu.weigh(exp(before(k - before(k, over=trajectory), over=trajectory))),
    "the first ones": token_mean().keep(position(over=trajectory) < 7),
    "what its row has": mu.weigh(where(first > 0, rho, 1)),
    "how many rows there are": mu.weigh(1 / count(trajectory, over=batch)),
    "the whole less what follows": mu.weigh(exp(total(k, over=trajectory) - total(k, over=trajectory) + k)),
    "the other rows": mu.weigh(exp(mean(mean(k, over=trajectory), over=prompt_group, of=trajectory, others=True))),
    "no policy, but advantages": mu.weigh(where(advantage > 0, 2, 1)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", FINE)
def test_a_weight_that_reads_earlier_tokens_is_proved(name):
    found = verdicts(FINE[name], groups=[prompt_group])
    assert found and all(v.status == "proved" for v in found), found


turn = Stratum("turn")
TURNS = count(turn, over=trajectory)


def of_turns(objective):
    return Hierarchy(
        name="turns", fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
        gates={s: identity_gate() for s in (token, turn, trajectory)}, decomposition=log_ratio(), objective=objective,
    )  # fmt: skip


def test_a_prefix_of_turns_is_proved_under_a_stated_assumption():
    (verdict,) = verdicts(mu.weigh(exp(before(mean(k, over=turn), over=trajectory, of=turn))), of_turns)
    assert verdict.status == "proved" and "ends before it begins" in verdict.argument
    for weight, status in ((1 / (1 + position(over=trajectory, of=turn)), "proved"), (exp(mean(k, over=turn)), "refuted")):
        assert [v.status for v in verdicts(mu.weigh(weight), of_turns)] == [status]


BY_TURNS = {  # which read how many turns there are
    "a share per turn": mu.weigh(1 / TURNS),
    "how far along in turns": mu.weigh((1 + position(over=trajectory, of=turn)) / TURNS),
    "all turns but the last": mu.keep(position(over=trajectory, of=turn) < TURNS - 1),
    "where a turn follows": mu.keep(after(1, over=trajectory, of=turn) > 0),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*AHEAD, *BY_TURNS])
def test_a_weight_that_reads_later_tokens_is_refuted_by_a_row(name):
    """Of the number of turns, the counterexample has one turn less without its last token."""
    make, objective = (one, AHEAD[name]) if name in AHEAD else (of_turns, BY_TURNS[name])
    h = make(objective)
    (verdict,) = verdicts(objective, make)
    assert verdict.status == "refuted", verdict
    told = from_json(h, verdict).counterexample
    now, values = world_of(h, told), told.values
    later, element, rows = values["later"], values["element"], now.label["trajectory"]
    assert later > element and rows[later] == rows[element]
    if name in BY_TURNS:
        assert later == now.n - 1 and now.label["turn"].count(now.label["turn"][-1]) == 1
        assert "which comes later" in str(verdict.counterexample)
    (formula,) = objective.weighed or [keep.condition for keep in objective.kept]
    seen = [value_of(w.at_token(formula, element)) for w in (before_it(now, values), now)]
    assert abs(seen[1] - seen[0]) > 1e-9
    assert are_close(seen, [values["before"], values["after"]])


def before_it(world, values):
    """The batch before its later token was changed, or came."""
    later, b = values["later"], world.batch
    if "changed" not in values:
        return world.of([i for i in range(world.n) if i != later])

    def put(given):
        return [values["from"] if i == later else v for i, v in enumerate(given)]

    what = values["changed"]
    policies = {n: put(v) if n == what else v for n, v in b.policies.items()}
    attributes = {n: {**v, later: values["from"]} if n == what else v for n, v in b.attributes.items()}
    x = put(b.x) if what == "log ratio" else b.x
    return type(world)(world.h, replace(b, x=x, policies=policies, attributes=attributes), exact=True)


def test_causal_has_no_verdict_without_weights_or_conditions():
    assert not verdicts(mu)
    assert [v.status for v in verdicts(mu.weigh(rho).keep(rho < C))] == ["proved", "proved"]
    given_up = one(mu, gives_up={"causal": "the whole row"}).verify()
    assert not given_up.ok and "nothing to speak of" in str(given_up)


def test_right_losses_that_read_whole_rows_give_up_causal():
    for name in weights_and_masks.AHEAD:
        found = [v for v in RIGHT[name].verify().verdicts if v.law == "causal"]
        assert {v.status for v in found} == {"refuted"} and all(v.given_up for v in found)


@pytest.mark.parametrize("longest", [20, 2048])
def test_a_filter_of_long_rows_is_refuted_by_a_long_row(longest):
    """This is DAPO's overlong filter."""
    h = load("dapo").replace(objective=token_mean().keep(count(token, over=trajectory) < longest))
    found = {v.law: str(v.counterexample) for v in h.verify().verdicts if v.status == "refuted"}
    assert set(found) == {"mask_open", "causal"}
    assert all(f"a trajectory of {longest} tokens" in said for said in found.values())
