"""The law causal: a weight or condition that reads later tokens is refuted by a row."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hierarchies import weights_and_masks
from hierarchies.weights_and_masks import RIGHT, C, batch, current, entropy, k, mu, old, one, rho, token, trajectory, x
from oracles.weights_and_masks import Batch, numbers, read

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


def verdicts(objective, **more):
    found = one(objective, **more).verify().verdicts
    return [v for v in found if v.law == "causal"]


def suffix(b: Batch, values):
    """What comes after each token in its row, token by token."""
    return np.array(
        [sum(values[j] for j in range(i + 1, len(b.row)) if b.row[j] == b.row[i]) for i in range(len(b.row))]
    )


# What looks ahead, and the same in numpy.
AHEAD = {
    "the whole trajectory's ratio": (mu.weigh(exp(total(k, over=trajectory))), lambda b: np.exp(b.per_row(b.k, np.sum))),
    "its geometric mean": (mu.weigh(exp(mean(k, over=trajectory))), lambda b: np.exp(b.per_row(b.k, np.mean))),
    "the suffix for the prefix": (mu.weigh(exp(after(k, over=trajectory) + k)), lambda b: np.exp(suffix(b, b.k) + b.k)),
    "how many follow": (mu.weigh(1 / (1 + after(1, over=trajectory))), lambda b: 1 / (1 + suffix(b, np.ones(len(b.row))))),
    "the length": (mu.weigh(1 / T), lambda b: 1 / b.size),
    "how far along": (mu.weigh((1 + position(over=trajectory)) / T), lambda b: 1 - suffix(b, np.ones(len(b.row))) / b.size),
    "a mean of the batch": (mu.weigh(rho / mean(rho, over=batch)), lambda b: np.exp(b.k) / np.exp(b.k).mean()),
    "a later entropy": (mu.weigh(total(entropy, over=trajectory)), lambda b: b.per_row(b.given["entropy"], np.sum)),
    "a prefix of means": (
        mu.weigh(exp(before(k - mean(k, over=trajectory), over=trajectory))),
        lambda b: np.exp(b.per_row(b.k - b.per_row(b.k, np.mean), np.sum) - suffix(b, b.k - b.per_row(b.k, np.mean)) - b.k + b.per_row(b.k, np.mean)),
    ),
    "a veto": (mu.keep(~some(absolute(k) > C, over=trajectory)), lambda b: b.per_row(abs(b.k) <= b.p["C"], np.all)),
    "a bound far off": (mu.keep(largest(k, over=trajectory) < 7), lambda b: b.per_row(b.k, np.max) < 7),
    "the largest ratio": (mu.weigh(exp(largest(x, over=trajectory))), lambda b: np.exp(b.per_row(b.x, np.max))),
    "a likely token": (
        mu.keep(largest(log_prob(current), over=trajectory) < -0.1), lambda b: b.per_row(b.lp["old"] + b.x, np.max) < -0.1
    ),
    "bad answers": (
        mu.keep((advantage > 0) | (mean(x, over=trajectory) > -C)), lambda b: (b.a > 0) | (b.per_row(b.x, np.mean) > -b.p["C"])
    ),
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


@pytest.mark.parametrize("name", AHEAD)
def test_a_weight_that_reads_later_tokens_is_refuted_by_a_row(name):
    objective, of = AHEAD[name]
    (verdict,) = verdicts(objective)
    assert verdict.status == "refuted", verdict
    told = json.loads(json.dumps(verdict.counterexample.to_dict()))
    values, b = told["values"], read({**told, "values": told["values"]})
    now = np.asarray(of(b), float)[values["element"]]
    later = values["later"]
    assert later > values["element"] and b.row[later] == b.row[values["element"]]
    was = before_it(b, values)
    then = np.asarray(of(was), float)[values["element"]]
    assert abs(now - then) > 1e-9
    assert {round(float(v), 9) for v in (now, then)} == {
        round(float(numbers([str(int(v)) if isinstance(v, bool) else v])[0]), 9)
        for v in (values["before"], values["after"])
    }


def before_it(b: Batch, values) -> Batch:
    """The batch before its later token was changed, or came."""
    j = values["later"]
    if "changed" not in values:
        keep = np.arange(len(b.row)) != j
        given, lp = ({n: v[keep] for n, v in m.items()} for m in (b.given, b.lp))
        return Batch(b.row[keep], b.x[keep], b.a[keep], lp, given, b.p)
    was = float(Fraction(values["from"]))

    def put(v):
        return np.where(np.arange(len(v)) == j, was, v)

    what = values["changed"]
    lp = {n: put(v) if n == what else v for n, v in b.lp.items()}
    given = {n: put(v) if n == what else v for n, v in b.given.items()}
    return Batch(b.row, put(b.x) if what == "log ratio" else b.x, b.a, lp, given, b.p)


@pytest.mark.parametrize("name", FINE)
def test_a_weight_that_reads_earlier_tokens_is_proved(name):
    found = verdicts(FINE[name], groups=[prompt_group])
    assert found and all(v.status == "proved" for v in found), found


turn = Stratum("turn")
TURNS = count(turn, over=trajectory)


def of_turns(objective):
    h = Hierarchy(
        name="turns", fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
        gates={s: identity_gate() for s in (token, turn, trajectory)}, decomposition=log_ratio(), objective=objective,
    )  # fmt: skip
    (verdict,) = [v for v in h.verify().verdicts if v.law == "causal"]
    return verdict


def test_a_prefix_of_turns_is_proved_under_a_stated_assumption():
    verdict = of_turns(mu.weigh(exp(before(mean(k, over=turn), over=trajectory, of=turn))))
    assert verdict.status == "proved" and "ends before it begins" in verdict.argument
    assert of_turns(mu.weigh(1 / (1 + position(over=trajectory, of=turn)))).status == "proved"
    assert of_turns(mu.weigh(exp(mean(k, over=turn)))).status == "refuted"


# What reads how many turns there are, and the same for a turn of a row of `n` turns.
BY_TURNS = {
    "a share per turn": (mu.weigh(1 / TURNS), lambda turn, n: 1 / n),
    "how far along in turns": (
        mu.weigh((1 + position(over=trajectory, of=turn)) / TURNS),
        lambda turn, n: (1 + turn) / n,
    ),
    "all turns but the last": (mu.keep(position(over=trajectory, of=turn) < TURNS - 1), lambda turn, n: turn < n - 1),
    "where a turn follows": (mu.keep(after(1, over=trajectory, of=turn) > 0), lambda turn, n: turn < n - 1),
}


@pytest.mark.parametrize("name", BY_TURNS)
def test_a_weight_that_reads_the_number_of_turns_is_refuted(name):
    """The counterexample has one turn less without its last token."""
    objective, of = BY_TURNS[name]
    found = of_turns(objective).counterexample
    maps, values = found.concrete.maps, found.values
    turns, (row,) = maps[token, turn], set(maps[turn, trajectory])
    assert row == 0 and values["later"] == len(turns) - 1 and turns.count(turns[-1]) == 1
    now, was = (of(turns[values["element"]], n) for n in (len(set(turns)), len(set(turns)) - 1))
    assert (float(values["before"]), float(values["after"])) == (pytest.approx(float(was)), pytest.approx(float(now)))
    assert "which comes later" in str(found)


def test_causal_has_no_verdict_without_weights_or_conditions():
    assert verdicts(mu) == []
    assert [v.status for v in verdicts(mu.weigh(rho).keep(rho < C))] == ["proved", "proved"]
    given_up = one(mu, gives_up={"causal": "the whole row"}).verify()
    assert not given_up.ok and "nothing to speak of" in str(given_up)


def test_right_losses_that_read_whole_rows_give_up_causal():
    for name in weights_and_masks.AHEAD:
        found = [v for v in RIGHT[name].hierarchy.verify().verdicts if v.law == "causal"]
        assert {v.status for v in found} == {"refuted"} and all(v.given_up for v in found)


@pytest.mark.parametrize("longest", [20, 2048])
def test_a_filter_of_long_rows_is_refuted_by_a_long_row(longest):
    """This is DAPO's overlong filter."""
    h = load("dapo").replace(objective=token_mean().keep(count(token, over=trajectory) < longest))
    found = {v.law: str(v.counterexample) for v in h.verify().verdicts if v.status == "refuted"}
    assert set(found) == {"mask_open", "causal"}
    assert all(f"a trajectory of {longest} tokens" in said for said in found.values())
