"""Functions as declarations for all sizes: their coefficients, their laws, and what has no declaration."""

import functools
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.audited import LABELS, function, parameters
from typer.testing import CliRunner

from fibration import LawError, compile, equivalent
from fibration.auditing.batch import off_policy, on_policy, small
from fibration.auditing.declare import LARGE, lift
from fibration.auditing.function import Function
from fibration.auditing.reference import Reference
from fibration.cli.main import app
from fibration.errors import AuditError
from fibration.language.atoms import Stratum
from fibration.language.loading import load, shipped

LIFTED = (
    "aipo aspo attenuated_trajectory bapo ce_gppo cispo cispo_absolute dapo dcpo decoupled_ppo dppo_kl dppo_tv dro fspo "
    "gmpo grpo gspo gspo_token icepop luspo m2po minirl mis opsm ppo ppo_entropy prefix_is prime_rl reinforce "
    "seq_mask_tis sequence_tis tis topr truly_ppo vespo"
).split()
NOT = {
    "best_of_group": "64 paths", "clip_cov": "product of sums", "fiberpo": "rows count", "fipo": "64 paths",
    "ctpo": "product of counts", "dr_grpo": "something else on",
}  # fmt: skip
OF_REWARDS = (
    "dapo_rewards dr_grpo_rewards grpo_k2 grpo_k3 grpo_rewards grpo_rk3 kimi_k15 kimi_k2 maxrl opo "
    "reinforce_pp_baseline rloo"
).split()
VALUED = "bapo dapo decoupled_ppo grpo m2po ppo ppo_entropy prime_rl tis truly_ppo gspo luspo".split()
token, trajectory = Stratum("token"), Stratum("trajectory")
lifted = functools.cache(lift)


def pg(log_probs, old_log_probs, advantages, mask):
    ratio, a = torch.exp(log_probs - old_log_probs), advantages[:, None]
    each = torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)
    return -(each * mask).sum() / mask.sum()


def of_sequences(log_probs, old_log_probs, advantages, mask):
    mean = ((log_probs - old_log_probs) * mask).sum(-1) / mask.sum(-1)
    return -torch.minimum(mean.exp() * advantages, mean.exp().clamp(0.9, 1.1) * advantages).mean()


def with_epsilon(log_probs, old_log_probs, advantages, mask):
    ratio = torch.exp(log_probs - old_log_probs)
    return -((ratio * advantages[:, None] * mask).sum(-1) / (mask.sum(-1) + 1e-8)).mean()


def of_groups(log_probs, old_log_probs, advantages, mask, group_ids):
    each, groups = torch.exp(log_probs - old_log_probs) * advantages[:, None] * mask, torch.unique(group_ids)
    inside = [(group_ids == g)[:, None] * mask for g in groups]
    return -sum((each * m).sum() / m.sum() for m in inside) / len(groups)


def cubed(log_probs, old_log_probs, advantages, mask):
    ratio = torch.exp(log_probs - old_log_probs)
    return -(ratio**3 * advantages[:, None] * mask).sum() / mask.sum()


def cooled(log_probs, old_log_probs, advantages, mask):
    ratio = torch.exp(((log_probs - old_log_probs) / 0.7).clamp(-20, 20))
    return -(ratio * advantages[:, None] * mask).sum() / mask.sum()


def of_row_means(log_probs, old_log_probs, advantages, mask):
    mean = ((log_probs - old_log_probs) * mask).sum(-1) / (mask.sum(-1) + 1e-8)
    ratio = mean.exp().detach()[:, None] * (log_probs - log_probs.detach()).exp()
    return -((ratio * advantages[:, None] * mask).sum(-1) / mask.sum(-1)).mean()


def long_rows(log_probs, old_log_probs, advantages, mask):
    half = 0.5 if mask.shape[1] > 20 else 1.0
    return half * pg(log_probs, old_log_probs, advantages, mask)


def in_order(log_probs, old_log_probs, advantages, mask):
    place = torch.argsort(log_probs, dim=-1)
    return -(torch.exp(log_probs - old_log_probs) * place * advantages[:, None] * mask).sum()


def _is_full(b):
    groups = [r.group for r in b.rows]
    return min(map(groups.count, groups)) > 1


def alike(h, subject):
    """Whether a declaration has a function's coefficients, on batches of every spread and padding."""
    reference = Reference.of(h, subject)
    each = (b for b in (*small(), *on_policy(), *off_policy()) if not subject.reads_rewards or _is_full(b))
    for b in each:
        mine, theirs = subject.evaluate(b).coefficients, reference.evaluate(b).coefficients
        close = np.abs(mine - theirs) <= 2e-6 * np.abs(mine).max(initial=0) + 1e-15
        assert close.all(), (b, mine, theirs)
    return True


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*LIFTED, *OF_REWARDS])
def test_published_formulas_have_declarations_with_their_gradients(name):
    call = function(name, parameters(name))
    h = lift(call, name)
    assert alike(h, Function(call, name))
    is_score = "opo rloo kimi_k15 kimi_k2".split()
    assert (h.objective.estimator == "ratio") is (name in {*VALUED, *OF_REWARDS, "gspo_token"} - {*is_score})


BASELINES = {
    "none": (lambda r, same: 0, "reward"),
    "group": (lambda r, same: r[same].mean(), "mean(reward, over=prompt_group, of=trajectory)"),
    "others": (
        lambda r, same: (r[same].sum() - r[0]) / (same.sum() - 1),
        "mean(reward, over=prompt_group, of=trajectory, others=True)",
    ),
    "batch": (lambda r, same: r.mean(), "mean(reward, over=batch, of=trajectory)"),
    "other rows": (lambda r, same: r[1:].mean(), "mean(reward, over=batch, of=trajectory, others=True)"),
}
SPREADS = {
    "none": (lambda r, same: 1, ""),
    "group": (lambda r, same: r[same].std() + 1e-6, "deviation(reward, over=prompt_group, of=trajectory)"),
    "of n": (lambda r, same: r[same].std(unbiased=False) + 1e-4, "sqrt(mean((reward - mean(reward"),
    "batch": (lambda r, same: r.std() + 1e-8, "deviation(reward, over=batch, of=trajectory)"),
}


def of_rewards(baseline, spread):
    def loss(log_probs, old_log_probs, rewards, mask, group_ids):
        each = []
        for i in range(len(rewards)):  # its own reward first
            order = torch.cat([torch.tensor([i]), torch.arange(i), torch.arange(i + 1, len(rewards))])
            r, same = rewards[order], group_ids[order] == group_ids[i]
            each.append((rewards[i] - BASELINES[baseline][0](r, same)) / SPREADS[spread][0](r, same))
        return pg(log_probs, old_log_probs, torch.stack(each), mask)

    return loss


@pytest.mark.sampled
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_advantages_that_a_function_makes_of_rewards_are_declared(baseline, spread):
    call = of_rewards(baseline, spread)
    h = lift(call)
    assert BASELINES[baseline][1] in str(h.advantages) and SPREADS[spread][1] in str(h.advantages)
    assert alike(h, Function(call, "call")) and ("baseline" in h.gives_up) is (spread != "none")
    assert "where(residual <= 0.28, residual, 0.28)" in str(h.gate(token))
    if (baseline, spread) == ("others", "none"):
        assert h.verify().ok


def test_the_page_counts_the_formulas_that_have_declarations():
    made = {n: function(n, parameters(n)) for n in shipped() if n not in LABELS}
    takes = [n for n, call in made.items() if "advantages" in inspect.signature(call).parameters]
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "audit.md").read_text()
    assert f"{len(LIFTED)} of {len(takes)} formulas of advantages" in page
    assert f"{len(OF_REWARDS)} of {len(made) - len(takes)} formulas of rewards have a declaration" in page
    assert f"rows of up to {max(LARGE)} tokens" in page


@pytest.mark.parametrize("name", NOT)
def test_what_has_no_declaration_is_refused_in_words(name):
    with pytest.raises(AuditError, match=NOT[name]):
        lift(function(name, parameters(name)), name)


def test_a_clip_that_is_written_by_hand_keeps_all_laws_and_is_the_shipped_loss():
    h = lifted(pg)
    assert h.name == "pg" and h.verify().ok and not h.gives_up
    assert "where(residual <= 0.28, residual, 0.28)" in str(h.gate(token))
    assert equivalent(h, load("dapo"), parameters={"epsilon_low": 0.2, "epsilon_high": 0.28}).ok


def test_a_ratio_of_rows_is_a_gate_on_rows():
    h = lift(of_sequences)
    assert set(h.gates) == {token, trajectory} and "log1p(0.1)" in str(h.gate(trajectory))
    assert h.verify().ok and list(h.gives_up) == ["first_order"]


@pytest.mark.parametrize(("call", "word"), [(with_epsilon, "1e-08"), (of_row_means, "1e-08"), (cooled, "10/7")])
def test_numbers_are_written_as_the_function_has_them(call, word):
    h = lift(call)
    assert word in str(h) and alike(h, Function(call, call.__name__))
    assert all(v.status == "proved" for v in h.verify().verdicts if v.law == "locality")


def weighed(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
    ratio, a = torch.exp(log_probs - old_log_probs), advantages[:, None]
    w = torch.exp(old_log_probs - rollout_log_probs).clamp(max=2.0).detach()
    return -(w * torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a) * mask).sum() / mask.sum()


def masked(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
    w = torch.exp(old_log_probs - rollout_log_probs).detach()
    w = torch.where((w >= 0.5) & (w <= 2.0), w, 0.0)
    return -(w * torch.exp(log_probs - old_log_probs) * advantages[:, None] * mask).sum() / mask.sum()


@pytest.mark.parametrize("call", [weighed, masked])
def test_weights_by_frozen_policies_are_no_part_of_the_gate(call):
    h = lift(call)
    assert len(h.objective.weighed) == 1 and "rollout" not in str(h.gate(token)) and alike(h, Function(call, "call"))
    assert len(h.objective.kept) == (call is masked)
    proved = {v.law for v in h.verify().verdicts if v.status == "proved"}
    assert {"identity", "gradient"} <= proved


def test_means_of_groups_have_their_counts():
    h = lift(of_groups)
    assert alike(h, Function(of_groups, "of_groups")) and "over=prompt_group" in str(h.objective.weight)


def test_a_law_that_a_function_breaks_is_refuted():
    h = lift(cubed)
    found = h.verify()
    assert next(v.law for v in found.verdicts if v.status == "refuted" and not v.cause) == "identity"
    with pytest.raises(LawError):
        compile(h)


def vetoed(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
    ratio, rho = (log_probs - old_log_probs).exp(), (old_log_probs - rollout_log_probs).exp()
    wild = ((rho < 0.5) | (rho > 2.0)) & mask.bool()
    return -(ratio * ~wild.any(-1, keepdim=True) * advantages[:, None] * mask).sum() / mask.sum()


def least_of_group(log_probs, old_log_probs, advantages, mask, group_ids):
    x = log_probs - old_log_probs
    low = x.detach().masked_fill(mask == 0, torch.inf).amin(-1)
    each = torch.stack([low[group_ids == g].min() for g in group_ids])
    return -(x.exp() * (each > -0.7)[:, None] * advantages[:, None] * mask).sum() / mask.sum()


def less_the_best(log_probs, old_log_probs, rewards, mask, group_ids):
    a = rewards - torch.stack([rewards[group_ids == g].max() for g in group_ids])
    return -((log_probs - old_log_probs).exp() * a[:, None] * mask).sum() / mask.sum()


def later_tokens(log_probs, old_log_probs, advantages, mask):
    x = (log_probs - old_log_probs) * mask
    later = x.detach().flip(-1).cumsum(-1).flip(-1)
    return -(x.exp() * (later < 0.4) * advantages[:, None] * mask).sum() / mask.sum()


def of_prefixes(log_probs, old_log_probs, advantages, mask):
    x = (log_probs - old_log_probs) * mask
    before = x.detach().cumsum(-1) - x.detach()
    return -(x.exp() * before.exp() * advantages[:, None] * mask).sum() / mask.sum()


WORDS = {
    vetoed: "1, 0), over=trajectory)", least_of_group: "largest(-token_log_ratio, over=prompt_group)",
    less_the_best: "reward - largest(reward, over=prompt_group, of=trajectory)",
    later_tokens: "after(token_log_ratio, over=trajectory) + token_log_ratio",
    of_prefixes: "before(token_log_ratio, over=trajectory)",
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("call", WORDS)
def test_maxima_and_order_have_words(call):
    h = lift(call)
    assert WORDS[call] in str(h) and alike(h, Function(call, "call"))


def covariances(log_probs, old_log_probs, advantages, mask):
    x, a = (log_probs - old_log_probs) * mask, advantages[:, None] * mask
    moved = x.sum(-1) * (a * x).sum(-1)
    return -(x.exp() * moved.detach()[:, None] * a).sum() / mask.sum()


def of_neighbours(log_probs, old_log_probs, advantages, mask):
    x = (log_probs - old_log_probs) * mask
    last = torch.roll(x.detach(), 1, -1)
    return -(x.exp() * last * advantages[:, None] * mask).sum() / mask.sum()


def many_paths(log_probs, old_log_probs, advantages, mask):
    x = (log_probs - old_log_probs) * mask
    far = [bool(v > 0.1) for v in x.detach().flatten()]
    return -(x.exp() * (1 + sum(far)) * advantages[:, None] * mask).sum() / mask.sum()


REFUSED = (
    (in_order, "sort", 1), (covariances, "a product of sums", 2), (of_neighbours, "some of the tokens", 2),
    (many_paths, "64 paths", 2),
)  # fmt: skip


def lone_answers_keep_their_reward(log_probs, old_log_probs, rewards, mask, group_ids):
    same = (group_ids[:, None] == group_ids).to(rewards.dtype)
    n = same.sum(-1)
    a = rewards - torch.where(n > 1, same @ rewards / n, torch.zeros_like(rewards))
    return -((log_probs - old_log_probs).exp() * a[:, None] * mask).sum() / mask.sum()


def test_a_rule_for_groups_of_one_answer_is_not_overlooked():
    with pytest.raises(AuditError, match="a prompt group of one answer"):
        lift(lone_answers_keep_their_reward)


@pytest.mark.parametrize(("call", "found", "line"), REFUSED)
def test_a_refusal_names_what_has_no_words_and_its_line(call, found, line):
    with pytest.raises(AuditError, match=rf"{found}.*line {inspect.getsourcelines(call)[1] + line} of test_lift.py"):
        lift(call)


def test_a_function_that_is_another_for_other_sizes_has_no_declaration():
    with pytest.raises(AuditError, match="of up to 61 tokens"):
        lift(long_rows)


SOURCE = """
import torch
def loss(log_probs, old_log_probs, advantages, mask):
    ratio, a = torch.exp(log_probs - old_log_probs), advantages[:, None]
    return -(torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a) * mask).sum() / mask.sum()
"""


def test_commands_take_a_function(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    run = lambda *words: CliRunner().invoke(app, [*words])  # noqa: E731
    verified = run("verify", f"{file}:loss")
    assert verified.exit_code == 0 and "9 laws proved" in verified.output and "read from a function" in verified.output
    declared = run("show", f"{file}:loss", "--format", "python")
    (tmp_path / "declared.py").write_text(declared.output)
    assert equivalent(load(tmp_path / "declared.py"), lifted(pg)).ok
    compared = run("compare", f"{file}:loss", "dapo", "--at-defaults")
    assert compared.exit_code == 0
    written = run("compile", f"{file}:loss", "--backend", "torch", "--output", str(tmp_path / "out"))
    assert written.exit_code == 0 and (tmp_path / "out" / "loss_torch.py").exists()
