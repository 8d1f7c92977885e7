"""Expected gradients of penalties, summed over all actions of small states: proved penalties and refuted ones."""

import json
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hierarchies import divergences
from hierarchies.divergences import RIGHT, UNDECIDED, WRONG, Term, d, entropy, slope, x
from oracles.certified_facts import decided

from fibration import Penalty, advantage, sqrt, where

NAMES = {"current": "l", "old": "o", "reference": "q", "rollout": "w"}


def verdict(term):
    (found,) = decided(term.hierarchy, "kl_gradient", alone=True)
    return found


def update(term: Term, state: dict[str, np.ndarray], sampled: str) -> np.ndarray:
    """`Σ_a b(a)·c(a)·∇log π(a)` in the logits of a state, over all of its tokens `a`."""
    current, b = state["current"], state[sampled]
    found = np.zeros(len(current))
    for a in range(len(current)):
        c = slope(term.of, **{NAMES[p]: math.log(v[a]) for p, v in state.items()})
        found += b[a] * c * ((np.arange(len(current)) == a) - current)
    return found


def gradient(target: str, state: dict[str, np.ndarray]) -> np.ndarray:
    """Of KL(current‖target) in the logits, or of -entropy, by central differences of sums over all tokens."""
    other = state[target] if target else np.ones(len(state["current"]))
    z, step = np.log(state["current"]), 1e-6

    def value(logits):
        p = np.exp(logits) / np.exp(logits).sum()
        return float((p * np.log(p / other)).sum())

    rows = np.eye(len(z)) * step
    return np.array([(value(z + e) - value(z - e)) / (2 * step) for e in rows])


def states(rng: random.Random):
    for n in (2, 3, 4):
        made = {p: np.array([rng.uniform(0.2, 2) for _ in range(n)]) for p in NAMES}
        yield {p: v / v.sum() for p, v in made.items()}


@pytest.mark.sampled
@pytest.mark.parametrize("name", RIGHT)
def test_a_penalty_with_the_gradient_of_a_divergence_is_proved(name):
    term = RIGHT[name]
    found = verdict(term)
    assert found.status == "proved", found
    of = f"KL(current‖{term.target})" if term.target else "gradient of -entropy"
    assert of in found.argument and ("off policy too" in found.argument) is term.exact
    for state in states(random.Random(name)):
        on = {p: state["current"] for p in state} | (
            {"reference": state["reference"]} if term.target == "reference" else {}
        )
        if term.target == "old" and not term.exact:
            near = state["current"] * np.exp(1e-4 * np.arange(len(state["current"])))
            on |= {"old": near / near.sum()}
        goal = term.kappa * gradient(term.target, on)
        for sampled in ("current", "old") if term.target == "old" and not term.exact else ("current",):
            if not (term.target == "old" and term.exact):
                np.testing.assert_allclose(update(term, on, sampled), goal, atol=2e-8 if term.target != "old" else 3e-8)
        off = {**state, "rollout": state["old"]}
        close = np.allclose(update(term, off, "old"), term.kappa * gradient(term.target, off), atol=1e-7)
        assert close is term.exact


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_a_penalty_with_another_gradient_is_refuted_by_a_state(name):
    term = WRONG[name]
    found = verdict(term)
    assert found.status == "refuted", found
    values = json.loads(json.dumps(found.counterexample.to_dict()))["values"]
    state = {p: np.array([float(Fraction(v)) for v in values[p]]) for p in NAMES if p in values}
    state = {p: state.get(p, state["current"]) for p in NAMES}
    assert all(abs(v.sum() - 1) < 1e-12 for v in state.values())
    target = values["target"].replace("entropy", "")
    updates = [update(term, state, sampled) for sampled in ("current", "old")]
    goal = gradient(target, state)
    c = [slope(term.of, **{NAMES[p]: math.log(v[a]) for p, v in state.items()}) for a in range(len(goal))]
    np.testing.assert_allclose(c, [float(Fraction(v)) for v in values["derivatives"]], atol=1e-6)
    along = [float(u @ goal) for u in updates]
    rejected = [u - goal * k / float(goal @ goal) for u, k in zip(updates, along, strict=True)]
    bent = max(float(abs(u).max()) for u in rejected) > 1e-4
    assert bent or min(along) <= 1e-4 * float(goal @ goal), (updates, goal)


def test_the_collection_has_many_right_and_wrong_penalties():
    assert len(WRONG) >= 15 <= len(RIGHT)


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNDECIDED)
def test_a_penalty_that_joins_tokens_is_undecided(name):
    assert verdict(Term(UNDECIDED[name], lambda t: 0.0)).status == "undecided"


def test_a_penalty_with_a_root_of_0_is_not_proved():
    kink, smooth = d**2 / 2 + sqrt(x * x), d**2 / 2 + sqrt(1 + x * x)
    held = d**2 / 2 * sqrt(entropy)
    found = [verdict(Term(e, lambda t: 0.0)).status for e in (kink, smooth, held)]
    assert found == ["undecided", "proved", "proved"]


def test_penalties_that_read_advantages_or_coarser_elements_have_no_verdict():
    h = RIGHT["k2"].hierarchy
    for penalty in (
        where(advantage > 0, d, 0),
        Penalty(d, objective=divergences.token_mean().keep(advantage > 0)),
        Penalty(divergences.mean(d, over=divergences.trajectory), over=divergences.trajectory),
    ):
        asked = h.replace(penalties={"term": penalty}, gives_up={"kl_gradient": "the likelihood of good ones"}).verify()
        assert not any(v.law == "kl_gradient" for v in asked.verdicts)
        assert not asked.ok  # what is not asked is not given up


def test_each_penalty_has_a_verdict_and_can_be_given_up():
    h = RIGHT["k2"].hierarchy.replace(penalties={"right": d**2, "wrong": d, "drift": x**2})
    found = {v.subject: v.status for v in h.verify().verdicts if v.law == "kl_gradient"}
    assert found == {"penalty 'right'": "proved", "penalty 'wrong'": "refuted", "penalty 'drift'": "proved"}
    assert h.replace(gives_up={"kl_gradient": "k1 is read as a metric alone"}).verify().ok


def test_a_state_of_attributes_may_have_no_gradient():
    """A gradient of 0 somewhere refutes nothing if a formula reads more than probabilities."""
    for formula, status in ((where(entropy > 100, d**2, 0), "proved"), (where(entropy > 100, d, 0), "refuted")):
        assert verdict(Term(formula, lambda t: 0.0)).status == status
