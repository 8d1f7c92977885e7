"""`docs/examples/turn_credit.py` and its page: what they print, and coefficients beside a formula of plain torch."""

import re
from pathlib import Path

import pytest
import torch
from example_loops import example
from test_docs import run_blocks

import fibration

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "turns.md").read_text()
turn_credit = example("turn_credit")
GIVEN_UP = dict.fromkeys(("baseline", "baseline of what is left of advantages"), "a test")


def added_up(k, own, others):
    return sum(own[i] - sum(o[i] for o in others if i < len(o)) / len(others) for i in range(k, len(own)))


def from_here(k, own, others):
    return sum(own[k:]) - sum(sum(o[k:]) for o in others) / len(others)


LOSSES = {
    "added_up": (turn_credit.loss("added_up", turn_credit.ADDED_UP, GIVEN_UP), added_up),
    "from_here": (turn_credit.loss("from_here", turn_credit.FROM_HERE), from_here),
}


def rows_of_an_agent():
    """Actions, mask and rewards of an agent that goes on in about half of its trajectories, and one that has moved."""
    agent, moved = turn_credit.Agent(), turn_credit.Agent()
    actions, mask, rewards = agent.sample(torch.Generator().manual_seed(3))
    with torch.no_grad():
        moved.logits += 0.4 * torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return actions, mask, rewards, agent(actions).detach(), moved(actions).detach()


def objective(log_probs, old, mask, advantages):
    """J in plain torch, row by row: log ratios of trajectories, turns and tokens, each within its budget."""
    found = torch.zeros((), dtype=torch.float64)
    for x, kept, a in zip(log_probs - old, mask, advantages, strict=True):
        whole = x[kept].mean()
        for turn in (slice(0, 2), slice(2, 4)):
            if kept[turn].any():
                own = x[turn].mean()
                apart = (x[turn] - own).clamp(-0.1, 0.1)
                gated = (whole.clamp(-0.2, 0.2) + (own - whole).clamp(-0.1, 0.1) + apart).exp()
                found = found + (gated * a[turn]).sum()
    return found / mask.sum()


@pytest.mark.sampled
@pytest.mark.parametrize("backend", ["torch", "c"])
@pytest.mark.parametrize("name", LOSSES)
def test_coefficients_are_those_of_a_formula_in_plain_torch(name, backend):
    h, of = LOSSES[name]
    actions, mask, rewards, old, now = rows_of_an_agent()
    earned = [[float(r[:2].sum()), *([float(r[2:].sum())] if m[2] else [])] for r, m in zip(rewards, mask, strict=True)]
    advantages = torch.zeros(mask.shape, dtype=torch.float64)
    for i, own in enumerate(earned):
        first = i // turn_credit.SAMPLES * turn_credit.SAMPLES
        others = [earned[j] for j in range(first, first + turn_credit.SAMPLES) if j != i]
        for k in range(len(own)):
            advantages[i, 2 * k : 2 * k + 2] = of(k, own, others)
    op = fibration.compile(h, backend)
    index = turn_credit.index_of(op, mask)
    torch.testing.assert_close(op.advantages(rewards, index), advantages, rtol=1e-12, atol=1e-12)
    for moved in (old, now):
        log_probs = moved.clone().requires_grad_()
        value = objective(log_probs, old, mask, advantages)
        (slope,) = torch.autograd.grad(value, log_probs)
        found = op.coefficients(moved, old, index=index, rewards=rewards)
        torch.testing.assert_close(found.values, slope, rtol=1e-12, atol=1e-14)
        assert float(found.objective) == pytest.approx(float(value.detach()), rel=1e-12)
    shares = found.metrics
    assert all(0 < float(shares[f"{level}/limited"]) < 1 for level in ("turn", "trajectory")), dict(shares)


@pytest.mark.thorough
def test_the_page_shows_what_the_script_prints(capsys):
    turn_credit.main()
    made = capsys.readouterr().out.splitlines()
    (shown,) = re.findall(r"turn_credit.py\n\n((?:    .*\n|\n)+)", PAGE)
    said = [line.removeprefix("    ") for line in shown.rstrip().splitlines()]
    rows = [line for line in said if re.match(r" +\d+ ", line)]
    assert [line.rstrip() for line in made[: -len(rows)]] == said[: -len(rows)]
    for line, expected in zip(made[-len(rows) :], rows, strict=True):
        assert list(map(float, line.split())) == pytest.approx(list(map(float, expected.split())), abs=0.05)
    _, biased, goes_on, best, always = map(float, made[-1].split())
    assert 0.5 < goes_on < 0.75 and biased < 0.85 < 0.95 < min(best, always)


def test_the_page_says_what_its_blocks_print_and_has_the_advantages_of_the_script(capsys):
    """Its turns are an attribute, those of the script a stratum."""
    agent = run_blocks(PAGE, capsys)["agent"]
    _, mask, rewards, _, _ = rows_of_an_agent()
    op, other = fibration.compile(agent), fibration.compile(LOSSES["from_here"][0])
    groups = (torch.arange(len(mask)) // turn_credit.SAMPLES).tolist()
    numbers = {"turn_number": torch.tensor([0, 0, 1, 1]).expand(len(mask), 4)}
    made = op.advantages(rewards, op.index(mask=mask, prompt_group=groups, attributes=numbers))
    torch.testing.assert_close(
        made, other.advantages(rewards, turn_credit.index_of(other, mask)), rtol=1e-12, atol=1e-14
    )
