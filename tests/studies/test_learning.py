"""The samples and updates of a training step, and that runs do not influence each other."""

from dataclasses import replace

import pytest
import rl
import torch
from arms import ARMS
from model import Shape, log_probs, sample
from rl import CONDITIONS, GROUPS, PROMPTS, ROWS, SAMPLES, Batch, Condition, Learner, Run, Sampler, learn
from tasks import DOMAINS, EQUALS, FIRST_SIGN, PROMPT, RESPONSE, answer, lengths

import fibration

SHAPE = Shape(width=8, layers=1, heads=2)
# Of an accumulated gradient that is a view; torch says it once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")


def run(arm, seed=3, condition="unequal", lr=1e-3, trust=1.0, steps=20):
    return Run("x", arm, condition, seed, lr, trust, steps)


class Stub:
    """Stands for a learner, whose weights are the number of its updates, and for what is measured."""

    def __init__(self, *_):
        self.current, self.trained = {"updates": 0}, []

    def step(self, number, batch):
        self.trained.append(batch)
        self.current["updates"] += 1

    def look(self, *_):
        pass

    add = look

    def results(self):
        return []


@pytest.mark.parametrize("name", ["unequal", "fresh", "stale"])
def test_samples_are_as_old_as_the_condition_says(monkeypatch, name):
    """What a domain trains on in step t was sampled by the weights after t - lag updates, on prompts of its own."""

    def rollouts(self, weights, moment):
        return Batch(*(torch.full((1, PROMPTS, 1), float(n)) for n in (weights["updates"], moment, 0, 0)))

    monkeypatch.setattr(Sampler, "rollouts", rollouts)
    monkeypatch.setattr(rl, "Series", Stub)
    learners = []
    monkeypatch.setattr(rl, "Learner", lambda *given: learners.append(Stub()) or learners[-1])
    learn(SHAPE, [run("grpo", condition=name, steps=40)], torch.zeros(1))
    trained = learners[0].trained
    assert len(trained) == 40
    for domain, lag in enumerate(CONDITIONS[name].lags):
        here = slice(domain * GROUPS, (domain + 1) * GROUPS)
        moments = [set(b.responses[:, here].flatten().tolist()) for b in trained]
        assert [set(b.prompts[:, here].flatten().tolist()) for b in trained] == [{max(0, t - lag)} for t in range(40)]
        assert all(len(m) == 1 for m in moments) and len(set.union(*moments)) == 40  # each sampled once, and used once
        assert moments[lag:] == [{t - lag} for t in range(lag, 40)]


def test_rewards_are_for_right_answers_and_for_the_conditions_extra(monkeypatch):
    """Half of all answers are made right; luck is a share of the wrong ones, a trick is where it is declared."""
    said = {}

    def answered(shape, weights, prompts, samples, noise):
        right = answer(prompts)[:, :, None].expand(-1, -1, samples, -1).clone()
        right[:, :, ::2, 1] = 12  # no digit
        said["responses"], said["prompts"] = right, prompts
        return right, torch.zeros(right.shape)

    monkeypatch.setattr(rl, "sample", answered)
    odd = (torch.arange(SAMPLES) % 2).float().expand(1, PROMPTS, SAMPLES)
    for name, rewarded in (("fresh", False), ("noisy", True), ("apart", True)):
        sampler = Sampler(SHAPE, [run("grpo", condition=name)])
        found = [sampler.rollouts({}, moment) for moment in range(60)]
        for batch in found:
            assert torch.equal(batch.rewards[:, : 3 * GROUPS], odd[:, : 3 * GROUPS])  # the first three domains
            assert bool((batch.rewards >= odd).all())
        gifts = torch.stack([b.rewards[:, 3 * GROUPS :, ::2] for b in found])
        assert bool(gifts.any()) == rewarded
        if name == "noisy":
            assert float(gifts.mean()) == pytest.approx(0.2, abs=0.04)
        if name == "apart":
            begins = torch.stack([b.responses[:, 3 * GROUPS :, ::2, 0] == 0 for b in found])
            assert torch.equal(gifts.bool(), begins)
    prompts = said["prompts"][0]
    assert prompts[:, 0].tolist() == [FIRST_SIGN + d for d in range(len(DOMAINS)) for _ in range(GROUPS)]
    assert bool((prompts[:, -1] == EQUALS).all()) and prompts.shape == (PROMPTS, PROMPT)


def stale_batch(base, seed=0):
    """Samples of other weights than those that train on them, so that no ratio is 1."""
    draw = torch.Generator().manual_seed(seed)
    models = len(base)
    prompts = torch.randint(10, (models, PROMPTS, PROMPT), generator=draw)
    noise = -torch.log(-torch.log(torch.rand(RESPONSE, models, ROWS, 16, generator=draw)))
    then = base + 0.1 * torch.randn(base.shape, generator=draw)
    responses, likely = sample(SHAPE, SHAPE.views(then), prompts, SAMPLES, noise)
    return Batch(prompts, responses, likely, (torch.rand(models, PROMPTS, SAMPLES, generator=draw) < 0.4).double())


def by_hand(arm, mine, weights, batch, k, step):
    """The gradient of a loss of one model, `[parts, size]`: of each domain's tokens, or of all; in float64."""
    op = fibration.compile(arm.hierarchy(), backend="torch")
    leaf = weights.clone().requires_grad_()
    at = rl.Sequences(SAMPLES)
    now = log_probs(SHAPE, SHAPE.views(leaf[None]), batch.prompts[k : k + 1], batch.responses[k : k + 1], at)[0]
    rewards = batch.rewards[k]
    deviation = (rewards - rewards.mean(1, keepdim=True)).square().sum(1, keepdim=True).div(SAMPLES - 1).sqrt()
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (deviation + 1e-4)).flatten()
    rows = torch.arange(ROWS)
    domains = rows // (GROUPS * SAMPLES)
    if arm.shuffled:
        order = torch.randperm(PROMPTS, generator=rl.stream(mine.seed, rl.LABEL_STREAM, step))
        domains = (order // GROUPS).repeat_interleave(SAMPLES)
    labels = {"prompt_group": (rows // SAMPLES).tolist(), "domain": domains.tolist()}
    mask = torch.arange(RESPONSE) < lengths(batch.responses[k]).flatten()[:, None]
    index = op.index(mask=mask, **{name: labels[name] for name in arm.labels})
    flat, old = now.flatten(0, 1), batch.old_log_probs[k].flatten(0, 1)
    seen = flat.detach().requires_grad_()
    op.loss(seen, old, advantages, index, arm.given(mine.trust)).loss.backward()
    parts = seen.grad.view(len(DOMAINS), -1, RESPONSE) if arm.clip_domains else seen.grad[None]
    found = []
    for n, part in enumerate(parts):
        whole = torch.zeros_like(flat)
        whole[n * len(part) : (n + 1) * len(part)] = part
        found.append(torch.autograd.grad(flat, leaf, whole, retain_graph=True)[0])
    return torch.stack(found)


@pytest.fixture
def in_double(monkeypatch):
    """Everything in float64, so that what is compared is a formula and not its rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arms", "trust"), [(("inward_domain", "placebo_shuffled"), 0.5), (("clip_domains", "clip_domains"), 0.02)]
)
def test_steps_equal_adam_on_the_gradient_of_the_loss(in_double, arms, trust):
    """Three steps of two models side by side, each against Adam as it is published, on gradients taken one by one."""
    runs = [run(name, seed, lr=lr, trust=trust) for name, seed, lr in zip(arms, (1, 2), (1e-2, 3e-3), strict=True)]
    base = torch.randn(2, SHAPE.size, generator=torch.Generator().manual_seed(1)) / 3
    learner, weights = Learner(SHAPE, runs, base), base.clone()
    first, second = torch.zeros_like(base), torch.zeros_like(base)
    for step in range(3):
        batch = stale_batch(weights, step)
        measured = learner.step(step, batch)
        for k, mine in enumerate(runs):
            parts = by_hand(ARMS[mine.arm], mine, weights[k], batch, k, step)
            if arms[0] == "clip_domains":
                norms = parts.norm(dim=1)
                assert bool((norms > trust).any())
                parts = torch.stack([p * min(1, trust / float(n)) for p, n in zip(parts, norms, strict=True)])
            gradient = parts.sum(0)
            norm = float(gradient.norm())
            assert measured[k]["grad_norm"] == pytest.approx(norm, rel=1e-5)
            gradient = gradient / max(1.0, norm)
            first[k] = 0.9 * first[k] + 0.1 * gradient
            second[k] = 0.95 * second[k] + 0.05 * gradient**2
            t = step + 1
            rate = mine.lr * t / 10  # of the warmup
            weights[k] -= rate * (first[k] / (1 - 0.9**t)) / ((second[k] / (1 - 0.95**t)).sqrt() + 1e-8)
        torch.testing.assert_close(learner.flat, weights, rtol=0, atol=1e-6)
    assert float((weights - base).abs().amax(1).min()) > 1e-3


@pytest.fixture
def lucky(monkeypatch):
    """Three wrong answers of ten are rewarded, since models that have learnt nothing are never right."""
    monkeypatch.setitem(rl.CONDITIONS, "unequal", Condition((1, 4, 16, 16), false_positives=(0.3,) * len(DOMAINS)))


@pytest.mark.thorough
def test_a_run_does_not_depend_on_runs_beside_it(lucky):
    """Alone, and with others before and after it: to the rounding of sums, which here has changed no sample."""
    runs = [run("grpo", 3, steps=10), run("placebo_shuffled", 4, steps=10), run("adaptive_domain", 3, steps=10)]
    base = SHAPE.initial([r.seed for r in runs])
    together = learn(SHAPE, runs, base)
    order = [1, 2, 0]
    again = learn(SHAPE, [runs[k] for k in order], base[order])
    alone = {k: learn(SHAPE, runs[k : k + 1], base[k : k + 1])[0] for k in (1, 2)}
    for k, wanted in enumerate(together):
        for found in (again[order.index(k)], *([alone[k]] if k in alone else [])):
            assert found.keys() == wanted.keys() and found["right"] == wanted["right"]
            assert found["reward"] == wanted["reward"]
            for name, values in wanted.items():
                given, right = torch.tensor(found[name]), torch.tensor(values)
                assert given.shape == right.shape and bool(
                    ((given - right).abs() <= 0.02 * right.abs() + 1e-4).all()
                ), name
    assert together[0]["moved"] != together[2]["moved"] and together[0]["reward"] != together[1]["reward"]


@pytest.mark.thorough
def test_two_arms_of_a_seed_begin_on_the_same_samples(lucky):
    """Paired by seed: until an update that differs has been sampled from, both see the same prompts and rewards."""
    first, second = (learn(SHAPE, [run(arm, steps=10)], SHAPE.initial([3]))[0] for arm in ("grpo", "gspo"))
    other = learn(SHAPE, [run("grpo", 4, steps=10)], SHAPE.initial([3]))[0]
    assert first["right"][0] == second["right"][0] and first["entropy"][0] == second["entropy"][0]
    stale = [row[2:] for row in first["reward"]]
    assert stale == [row[2:] for row in second["reward"]]  # of samples of the base, with a lag of 16
    seen = [Sampler(SHAPE, [replace(run(a), seed=s)]).ask(s, 5) for a, s in (("grpo", 3), ("gspo", 3), ("grpo", 4))]
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert other["right"][0] == first["right"][0]  # the questions are the same for all seeds
