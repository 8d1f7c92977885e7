"""Baselines per turn of an agent, which decides after each turn whether there is a next one (verl's issue 7244)."""

import itertools
import json
from fractions import Fraction

import pytest
import torch
from oracles.certified_facts import decided

import fibration
from fibration import (
    Fibration,
    Hierarchy,
    MarkovKernel,
    after,
    count,
    identity_gate,
    log_ratio,
    mass,
    maximum,
    mean,
    populated,
    position,
    proportional,
    reward,
    strata,
    token_mean,
    total,
    uniform,
    where,
)

token, sentence, turn, trajectory, prompt_group = strata("token sentence turn trajectory prompt_group")
T = count(token)
number = position(over=trajectory, of=turn)
IN_TURNS = [Fibration(token, turn, uniform()), Fibration(turn, trajectory, proportional(T))]
IN_SENTENCES = [
    Fibration(token, sentence, uniform()),
    Fibration(sentence, turn, proportional(T)),
    Fibration(turn, trajectory, proportional(T)),
]


def spec(formula, fibrations=IN_TURNS, **more):
    places = dict.fromkeys([s for f in fibrations for s in (f.source, f.target)])
    return Hierarchy(
        name="turns", fibrations=fibrations, gates={s: identity_gate() for s in places},
        decomposition=log_ratio(scale=mass), objective=token_mean(), groups=[prompt_group], advantages=formula, **more,
    )  # fmt: skip


def verdict(h):
    (found,) = (v for v in decided(h, "baseline", alone=True) if "left" not in v.subject)
    return found


def others(formula):
    return mean(formula, over=prompt_group, of=trajectory, others=True)


def first_or_second(first, second):
    return where(number <= 0, first, second)


def rest(formula):
    return total(formula, over=prompt_group, of=trajectory) - formula


to_go = reward + after(reward, over=trajectory)
whole = total(reward, over=trajectory)
EARNED = [total(where((number >= j) & (number <= j), reward, 0), over=trajectory) for j in (0, 1)]
SECOND = where(count(turn, over=trajectory) > 1, 1, 0)


def added_up(first, second):
    step = total(reward, over=turn) - first_or_second(first, second)
    return step + after(step, over=trajectory, of=turn)


def average(found):
    known = list(found)
    return sum(known, Fraction(0)) / len(known)


def at(row, k):
    return row[k] if k < len(row) else Fraction(0)


def of_those_there(rows, k):
    there = [row[k] for row in rows if k < len(row)]
    return sum(there, Fraction(0)) / max(len(there), 1)


# The formula, and the same in plain numbers: of turn k, from the rewards of its own turns and of those of other rows.
RIGHT = {
    "others, from the turn on": (
        to_go - first_or_second(others(EARNED[0] + EARNED[1]), others(EARNED[1])),
        lambda k, own, rows: sum(own[k:]) - average(sum(row[k:]) for row in rows),
    ),
    "others, as a whole": (to_go - others(whole), lambda k, own, rows: sum(own[k:]) - average(map(sum, rows))),
}
WRONG = {
    "turn by turn, added up": (
        added_up(others(EARNED[0]), others(EARNED[1])),
        lambda k, own, rows: sum(own[i] - average(at(row, i) for row in rows) for i in range(k, len(own))),
    ),
    "turn by turn, of those that get there": (
        added_up(
            rest(EARNED[0]) / maximum(count(trajectory, over=prompt_group) - 1, 1),
            rest(EARNED[1]) / maximum(rest(SECOND), 1),
        ),
        lambda k, own, rows: sum(own[i] - of_those_there(rows, i) for i in range(k, len(own))),
    ),
    "once for each turn": (
        to_go - others(whole) * count(turn, over=trajectory),
        lambda k, own, rows: sum(own[k:]) - len(own) * average(map(sum, rows)),
    ),
}

# A trajectory ends after its first turn, or goes on to one of two second turns.
GO, LAST = (Fraction(1, 3), Fraction(2, 3)), (Fraction(1, 4), Fraction(3, 4))
END, FIRST, SECONDS = Fraction(1, 2), Fraction(1, 5), (Fraction(0), Fraction(2))
WAYS = [(GO[0], (0,), [END])] + [(GO[1] * LAST[a], (1, a), [FIRST, SECONDS[a]]) for a in (0, 1)]


def scores(actions):
    """∇log π of the actions, in the logits of both states."""
    return [[(a == b) - chances[b] for b in (0, 1)] for a, chances in zip(actions, (GO, LAST), strict=False)]


def expected(of, n):
    """`E[mean over rows of Σ_k A_k·∇log π_k]` over all samples of `n` trajectories."""
    found = [[Fraction(0)] * 2 for _ in range(2)]
    for chosen in itertools.product(WAYS, repeat=n):
        chance = Fraction(1)
        for p, _, _ in chosen:
            chance *= p
        for i, (_, actions, own) in enumerate(chosen):
            rows = [row for j, (_, _, row) in enumerate(chosen) if j != i]
            for k, score in enumerate(scores(actions)):
                for b in (0, 1):
                    found[k][b] += chance * of(k, own, rows) * score[b] / n
    return found


GOAL = expected(lambda k, own, rows: sum(own), 1)  # REINFORCE, without a baseline


@pytest.mark.parametrize("name", RIGHT)
def test_a_baseline_that_reads_the_turn_and_other_rows_is_proved_and_unbiased(name):
    formula, of = RIGHT[name]
    found = verdict(spec(formula))
    assert found.status == "proved" and found.argument.startswith("A = R - b"), found
    assert expected(of, 2) == expected(of, 3) == GOAL


@pytest.mark.parametrize("name", WRONG)
def test_a_baseline_with_a_term_for_each_own_turn_is_refuted_and_biased(name):
    formula, of = WRONG[name]
    found = verdict(spec(formula))
    assert found.status == "refuted", found
    assert "where its row has one token more, a turn of its own" in found.counterexample.text
    assert expected(of, 2) != GOAL != expected(of, 3)
    values = json.loads(json.dumps(found.counterexample.to_dict()))["values"]
    # The first row has one turn, then two, and a reward of 0; all rewards of the other row go from 0 to 1.
    sizes = [1] * values["row"].count(values["row"][-1])
    shapes = [[1]] if len(sizes) == 1 else [[1, 1], [2]]
    steps = {tuple(of(0, [0] * n, [row]) - of(0, [0] * n, [[0] * len(row)]) for n in (1, 2)) for row in shapes}
    assert tuple(Fraction(v) for v in values["steps"]) in steps


def test_the_bias_is_what_others_earn_later_taken_from_going_on():
    """As the issue has it: the mean reward of later turns, off the decision to take another one."""
    later = GO[1] * sum(p * r for p, r in zip(LAST, SECONDS, strict=True))
    going_on = [-GO[0] * GO[1], GO[0] * GO[1]]  # the gradient of its probability
    for n in (2, 3):
        found = expected(WRONG["turn by turn, added up"][1], n)
        assert [a - b for a, b in zip(found[0], GOAL[0], strict=True)] == [-later * g for g in going_on]
        assert found[1] == GOAL[1]


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_the_plain_formula_is_the_declared_one(name):
    formula, of = {**RIGHT, **WRONG}[name]
    reasons = {"baseline": "a test", "baseline of what is left of advantages": "a test"} if name in WRONG else {}
    op = fibration.compile(spec(formula, gives_up=reasons))
    turns = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    ends = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 0, 0]])  # of turns
    rewards = ends * torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    groups = [0, 0, 1, 1, 1]
    index = op.index(mask=mask, turn=turns + 2 * torch.arange(5)[:, None], prompt_group=groups)
    made = op.advantages(rewards, index)
    earned = [
        [float(r[m & (t == k)].sum()) for k in range(1 + int(t[m].max()))]
        for r, m, t in zip(rewards, mask, turns, strict=True)
    ]
    for i, j in mask.nonzero().tolist():
        rows = [earned[k] for k in range(5) if k != i and groups[k] == groups[i]]
        assert float(made[i, j]) == pytest.approx(float(of(int(turns[i, j]), earned[i], rows)), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("formula", "of_its_own"),
    [
        (to_go - others(whole) * count(sentence, over=trajectory), "a sentence of its own"),
        (to_go - others(whole) * count(turn, over=trajectory), "a turn of its own"),
        (WRONG["turn by turn, added up"][0], "a turn of its own"),
    ],
    ids=["sentences", "turns", "turns with tokens"],
)
def test_a_token_more_may_begin_an_element_of_each_stratum(formula, of_its_own):
    found = verdict(spec(formula, IN_SENTENCES))
    assert found.status == "refuted" and of_its_own in found.counterexample.text


def test_the_fix_names_the_group_that_is_compared_and_no_turn():
    found = verdict(spec(WRONG["turn by turn, added up"][0]))
    assert "centred(reward, over=prompt_group, leave_one_out=True)" in found.remedy


def test_a_counterexample_has_no_turn_that_the_assumptions_exclude():
    """A turn of one token is of one kind, where every turn has tokens of both."""
    text, image = strata("text image")
    over, formula = Fibration(turn, trajectory, uniform()), to_go - others(whole) * count(turn, over=trajectory)
    alike = MarkovKernel(1 / (count(text, over=turn) + count(image, over=turn)))
    assert verdict(spec(formula, [*(Fibration(s, turn, alike) for s in (text, image)), over])).status == "refuted"
    halves, both = uniform(share=Fraction(1, 2)), [populated(s, over=turn) for s in (text, image)]
    found = verdict(spec(formula, [*(Fibration(s, turn, halves) for s in (text, image)), over], assume=both))
    assert found.status == "undecided"
