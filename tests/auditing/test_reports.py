"""What an audit says of functions that newcomers brought: nothing is accused that is right, and nothing wrong is passed."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.loss_functions import per_token, token_mean
from support import refuses
from typer.testing import CliRunner

from fibration import AuditError, ParameterError, audit
from fibration.auditing import properties
from fibration.auditing.batch import small
from fibration.auditing.call import other_numbers
from fibration.auditing.function import Function
from fibration.auditing.report import as_text, shown_batches
from fibration.cli.main import app


def right(log_probs, old_log_probs, advantages, mask):
    return token_mean(per_token(log_probs, old_log_probs, advantages), mask)


def leaves(log_probs, advantages, mask):
    raise SystemExit(0)


def ends(log_probs, advantages, mask):
    os._exit(0)


@pytest.mark.parametrize("function", [leaves, ends])
def test_a_function_that_ends_the_process_is_refused(function):
    refuses(AuditError, lambda: audit(function, "reinforce"), what=f"'{function.__name__}' raises SystemExit")


# ------------------------------------------------------------ precision


def in_bfloat16(log_probs, old_log_probs, advantages, mask):
    return right(log_probs.bfloat16(), old_log_probs.bfloat16(), advantages.bfloat16(), mask.bfloat16()).double()


def ratio_in_half(log_probs, old_log_probs, advantages, mask):
    r = (log_probs - old_log_probs).half().exp().double()
    return token_mean(-r * advantages[:, None], mask)


def mask_in_bfloat16(log_probs, old_log_probs, advantages, mask):
    return right(log_probs, old_log_probs, advantages, mask.bfloat16().double())


@pytest.mark.parametrize(("function", "dtype"), [(in_bfloat16, "bfloat16"), (ratio_in_half, "float16")])
def test_a_cast_to_half_precision_inside_is_found(function, dtype):
    found = properties.precision(Function(function, "function"))
    assert found.status == "fails" and dtype in found.text and found.batch.tokens == 1


@pytest.mark.parametrize("function", [right, mask_in_bfloat16])
def test_a_mask_in_half_precision_is_not_accused(function):
    assert properties.precision(Function(function, "function")).status == "holds"


# ------------------------------------------------------------ whitening


def whitened(correction, epsilon, values=per_token):
    def loss(log_probs, old_log_probs, advantages, mask):
        a = (advantages - advantages.mean()) / (advantages.std(correction=correction) + epsilon)
        return token_mean(values(log_probs, old_log_probs, a), mask)

    return Function(loss, "loss")


@pytest.mark.parametrize(
    ("of", "what"), [(lambda w, lp, a: w.exp() * lp * a, "detached"), (lambda w, lp, a: w.exp() * a - 0.01 * lp, "proportional")]
)
def test_what_keeps_the_first_update_from_the_advantages_is_named(of, what):
    def loss(log_probs, old_log_probs, advantages, mask):
        return token_mean(-of(log_probs - old_log_probs, log_probs, advantages[:, None]), mask)

    f = Function(loss, "loss")
    assert what in properties.first_update(f).text and "−J, or J" not in properties.sign(f).text


def of_prompts(log_probs, old_log_probs, advantages, mask, group_ids):
    values = per_token(log_probs, old_log_probs, advantages) * mask
    each = [values[group_ids == g].sum() / mask[group_ids == g].sum() for g in group_ids.unique()]
    return torch.stack(each).mean()


def times_rows(log_probs, old_log_probs, advantages, mask):
    return right(log_probs, old_log_probs, advantages, mask) * len(mask)


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        (of_prompts, "holds", "the mean over prompt groups of the mean over their tokens; multiply the loss of a micro-batch by its share of the prompt groups"),
        (times_rows, "note", "the sum over all tokens × rows ÷ tokens; multiply the loss of a micro-batch by the batch's rows ÷ its own and its share of the tokens"),
    ],
)  # fmt: skip
def test_a_normaliser_is_any_product_of_counts(function, status, words):
    found = properties.normaliser(Function(function, "f"))
    assert (found.status, found.text) == (status, f"μ is {words}")


def critic(larger):
    def loss(values, old_values, returns, mask):
        near = old_values + (values - old_values).clamp(-0.2, 0.2)
        return token_mean(larger((values - returns) ** 2, (near - returns) ** 2) / 2, mask)

    return Function(loss, "critic")


def test_a_critic_has_a_normaliser_and_a_clip():
    right, wrong = critic(torch.maximum), critic(torch.minimum)
    assert properties.normaliser(right).text.startswith("μ is the mean over all tokens; multiply")
    assert properties.sides(right).text == "a bound stops values that have come nearer to their returns by 0.2"
    found = properties.sides(wrong)
    assert found.status == "fails" and found.batch.tokens == 1 and "min for max" in found.text
    assert wrong.evaluate(found.batch).coefficients == 0 != right.evaluate(found.batch).coefficients


def test_a_critic_that_is_nan_on_some_batches_has_no_normaliser():
    def loss(values, returns, mask):
        return token_mean((values - returns) ** 2, mask) * (torch.nan if mask.sum() == 9 else 1)

    found = properties.normaliser(Function(loss, "critic"))
    assert found.status == "note" and found.text.startswith("not seen")


def test_a_rule_for_the_only_answer_of_a_group_is_said():
    def loss(log_probs, rewards, mask, group_ids):
        same = (group_ids[:, None] == group_ids).to(rewards.dtype)
        a = rewards - torch.where(same.sum(-1) > 1, same @ rewards / same.sum(-1), 0.0)
        return token_mean(-a[:, None] * log_probs, mask)

    found = properties.baseline(Function(loss, "f"))
    assert found.status == "note" and found.text.endswith("but the only answer of a group is pushed by more")


def test_a_critics_clip_without_a_maximum_stops_values_for_good():
    found = properties.sides(critic(lambda whole, clipped: clipped))
    assert found.status == "note" and "have left them" in found.text


def taught(stop):
    def loss(log_probs, old_log_probs, teacher_log_probs, mask):
        lead = 0.5 * stop(teacher_log_probs - log_probs)
        return token_mean(-(log_probs - old_log_probs).exp() * lead, mask)

    return properties.normaliser(Function(loss, "taught"))


def test_a_teachers_loss_has_a_normaliser_if_its_lead_is_detached():
    assert taught(torch.Tensor.detach).text.startswith("μ is the mean over all tokens × 0.5; multiply")
    other = taught(torch.Tensor.clone)
    assert other.status == "note" and "not detached?" in other.text


@pytest.mark.parametrize("correction", [0, 1])
def test_whitened_advantages_are_not_accused(correction):
    f = whitened(correction, 1e-8)
    assert f.whitens and properties.finite(f).status != "fails" and properties.sign(f) is None
    assert properties.first_update(f).status == "note" and properties.normaliser(f) is None
    assert properties.sides(f).text.endswith("A > 0 at the ratio 1.2 and outward ones with A < 0 at the ratio 0.8")
    assert not Function(right, "right").whitens


def clipped(ratio, advantages):
    return torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def test_a_bound_of_two_digits_is_met_by_no_batch_exactly() -> None:
    """Rounding would decide there, in float32 otherwise than in float64."""

    def gmpo(log_probs, old_log_probs, advantages, mask):
        x, a = (log_probs - old_log_probs) * mask, advantages[:, None]
        kept = torch.where(a > 0, x.clamp(max=0.4), x.clamp(min=-0.4))
        return -(((kept * mask).sum(1) / mask.sum(1).clamp(min=1)).exp() * advantages).mean()

    found = audit(gmpo)
    assert found.identified and found.losses[0].name == "gmpo" and not found.failures
    assert not any(round(x, 2) == round(x, 9) for b in small() for x in b.log_ratios)


def test_what_stops_nothing_or_everything_is_said_of_sides() -> None:
    def positive(log_probs, old_log_probs, advantages, mask):
        gated = clipped(torch.exp(log_probs - old_log_probs), advantages[:, None].clamp(min=0))
        return -(gated * mask).sum() / mask.sum()

    def shifted(log_probs, old_log_probs, advantages, mask):
        later = torch.roll(mask, 1, 1) * (torch.arange(mask.shape[1]) > 0)
        return -(clipped(torch.exp(log_probs - old_log_probs), advantages[:, None]) * later).sum()

    def scaled(log_probs, old_log_probs, advantages, mask):
        a = (advantages / (advantages.std() + 1e-4))[:, None]
        return -(clipped(torch.exp((log_probs - old_log_probs) * mask), a) * mask).sum() / mask.sum()

    said = {call.__name__: properties.sides(Function(call, "f")).text for call in (positive, shifted, scaled)}
    stops = "pushes stop: outward ones with A > 0 at the ratio 1.2"
    assert said["positive"] == f"{stops}; no token with A < 0 is pushed at any ratio"
    assert said["shifted"] == "not seen: rows of one token get no gradient"
    assert said["scaled"] == f"{stops} and outward ones with A < 0 at the ratio 0.8"


def test_a_reference_in_the_ratio_decides_gradients() -> None:
    def to_reference(log_probs, old_log_probs, ref_log_probs, advantages, mask):
        return -(clipped(torch.exp(log_probs - ref_log_probs), advantages[:, None]) * mask).sum() / mask.sum()

    assert "Is the ratio taken to it?" in properties.reference(Function(to_reference, "f")).text


def test_a_gradient_that_is_no_number_is_like_none() -> None:
    """An infinite one made all others small beside it: five losses had 'the same gradient'."""

    def less_one(log_probs, old_log_probs, advantages, mask):
        gated = torch.exp(log_probs - old_log_probs) * advantages[:, None] * mask
        return -(gated.sum(1) / (mask.sum(1) - 1)).mean()

    found = audit(less_one)
    said = {f.name: f.text for f in found.findings}
    assert not found.identified and "inf" not in said["normaliser"]
    assert said["inputs"].startswith("nothing is changed") and said["sides"].endswith("get no gradient that is a number")


def test_a_term_of_the_reference_may_be_0_near_it() -> None:
    def beyond(log_probs, old_log_probs, ref_log_probs, advantages, mask):
        term = 0.1 * torch.relu(log_probs - ref_log_probs - 1.5)
        return -((torch.exp(log_probs - old_log_probs) * advantages[:, None] - term) * mask).sum() / mask.sum()

    assert properties.reference(Function(beyond, "f")).text == "the term of the reference is 0 near it: a bound?"


def test_the_batch_beside_the_nearest_loss_tells_them_apart() -> None:
    def twice(log_probs, old_log_probs, advantages, mask):
        gated = clipped(torch.exp(log_probs - old_log_probs), advantages[:, None])
        return -((gated * mask).sum(1) / mask.sum(1)).mean() / len(mask)

    near = audit(twice).losses[0]
    mine, theirs = Function(twice, "f").evaluate(near.batch), near.other(near.batch)
    assert near.name == "grpo" and not np.allclose(mine.coefficients, theirs.coefficients)
    assert properties.normaliser(Function(twice, "f")).text.startswith(
        "μ is the sum over all tokens ÷ rows ÷ rows ÷ the row's tokens; multiply the loss of a micro-batch by its share of "
        "the rows and its share of the rows"
    )


def test_what_reads_no_advantages_or_standardises_padding_too_is_named_so() -> None:
    def plain(log_probs, old_log_probs, advantages, mask):
        return -(log_probs * mask).sum()

    def padding_too(log_probs, old_log_probs, advantages, mask):
        a = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        return -(torch.exp(log_probs - old_log_probs) * a * mask).sum()

    one, other = Function(plain, "plain"), Function(padding_too, "padding_too")
    assert not one.whitens and "not proportional to the advantages" in properties.first_update(one).text
    assert other.per_token and other.whitens and properties.first_update(other).status == "note"
    assert properties.padding(other).text.endswith("the gradient, which is NaN in one of them")


def test_a_batch_of_one_row_that_makes_nan_is_a_note():
    found = properties.finite(whitened(1, 1e-8))
    assert found.status == "note" and found.text.startswith("a batch of one row makes the loss NaN")


def test_a_loss_that_is_nan_where_all_is_masked_is_accused_of_nothing_else():
    def loss(log_probs, old_log_probs, advantages, mask):
        near = mask * ((log_probs - old_log_probs).abs() < 0.03)
        return token_mean(per_token(log_probs, old_log_probs, advantages), near)

    f = Function(loss, "loss")
    assert {ask(f).status for ask in (properties.padding, properties.rows)} == {"holds"}
    assert properties.mask(f).status == "note"
    assert "far off policy" in properties.finite(f).text


def test_an_entropy_bonus_is_no_mistake_of_the_loss_that_declares_it():
    def loss(log_probs, old_log_probs, advantages, mask):
        entropy = 0.01 * (log_probs - old_log_probs).exp() * (log_probs - 1)
        return token_mean(per_token(log_probs, old_log_probs, advantages) + entropy, mask)

    found = audit(loss, "ppo_entropy")
    assert found.ok and "'ppo_entropy' declares it so" in str(found)


def test_a_mistake_that_is_a_loss_with_other_numbers_than_declared_stays_one():
    """The gradient is 0 beyond the bound on both sides: nearly that of `ppo` with the ceiling 1.28."""

    def loss(log_probs, old_log_probs, advantages, mask):
        r = (log_probs - old_log_probs).exp()
        return token_mean(-r * (r < 1.28) * advantages[:, None], mask)

    found = audit(loss, "ppo")
    assert [f.name for f in found.failures] == ["sides"]


def test_equal_advantages_that_make_nan_are_found():
    found = properties.finite(whitened(0, 0.0))
    assert found.status == "fails" and "equal advantages make NaN" in found.text and found.batch.lengths == (1, 1)


def test_a_clip_on_the_wrong_side_is_found_beside_whitening():
    def values(log_probs, old_log_probs, a):
        r, a = (log_probs - old_log_probs).exp(), a[:, None]
        return -torch.maximum(r * a, r.clamp(0.8, 1.2) * a)

    found = properties.sides(whitened(0, 1e-8, values))
    assert found.status == "fails" and "max for min" in found.text and len(found.batch.rows) == 2


# ------------------------------------------------------------ both batches of a finding


def over_the_width(log_probs, old_log_probs, advantages, mask):
    return (per_token(log_probs, old_log_probs, advantages) * mask).mean()


@pytest.fixture(scope="module")
def found():
    return audit(over_the_width, "dapo")


# ------------------------------------------------------------ the rollout engine's weight


def weighted(weight):
    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        w = weight(old_log_probs - rollout_log_probs).detach()
        return token_mean(w * per_token(log_probs, old_log_probs, advantages), mask)

    return properties.engine(Function(loss, "loss"))


UPSIDE_DOWN = {
    "truncated": lambda x: (-x).exp().clamp(max=2),
    "bare": lambda x: (-x).exp(),
    "masked": lambda x: (-x).exp() * (x.abs() < 0.15),
    "truncated near 1": lambda x: (-x).exp().clamp(max=1.15),
}
UPRIGHT = {
    "truncated": lambda x: x.exp().clamp(max=2),
    "masked": lambda x: x.exp() * (x.abs() < 0.15),
    "constant": torch.ones_like,
    "truncated near 1": lambda x: x.exp().clamp(max=1.0),
}


@pytest.mark.parametrize("name", UPSIDE_DOWN)
def test_an_importance_weight_upside_down_is_found_without_a_loss_beside_it(name):
    found = weighted(UPSIDE_DOWN[name])
    assert found.status == "fails" and "old and rollout exchanged" in found.text and found.batch.tokens <= 3


@pytest.mark.parametrize("name", UPRIGHT)
def test_an_importance_weight_is_not_accused(name):
    assert weighted(UPRIGHT[name]).status == "holds"


# The ratio of a pair of policies is itself no weight beside another one.
NO_WEIGHT = {
    "the ratio itself": lambda x, y: x.exp(),
    "the ratio itself, clipped": lambda x, y: x.exp().clamp(0.8, 1.2),
    "a detached weight": lambda x, y: x.exp().clamp(max=2).detach() * y.exp(),
    "a detached weight without bound": lambda x, y: x.exp().detach() * y.exp(),
}


@pytest.mark.parametrize("name", NO_WEIGHT)
def test_a_ratio_to_the_rollout_engine_is_not_accused(name):
    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        values = NO_WEIGHT[name](log_probs - rollout_log_probs, log_probs - old_log_probs)
        return token_mean(-values * advantages[:, None], mask)

    assert properties.engine(Function(loss, "loss")).status == "holds"


# ------------------------------------------------------------ bounds, micro-batches


def row_ratio(log_probs, old_log_probs, mask):
    return (((log_probs - old_log_probs) * mask).sum(-1) / mask.sum(-1).clamp(min=1)).exp()


def test_a_loss_without_a_bound_is_told_so_and_not_accused():
    def loss(log_probs, old_log_probs, advantages, mask):
        return -(row_ratio(log_probs, old_log_probs, mask) * advantages).mean()

    found = properties.sides(Function(loss, "loss"))
    assert found.status == "note" and found.text.startswith("no bound: with A > 0 the coefficient grows")
    assert "no bound" not in properties.sides(Function(right, "right")).text


SHARES = {
    "its share of the rows": lambda v, m: (v.sum(-1) / m.sum(-1).clamp(min=1)).mean(),
    "its share of the tokens": lambda v, m: v.sum() / m.sum(),
    "its share of the places": lambda v, m: v.mean(),
    "its width ÷ that of the batch": lambda v, m: v.sum() / m.shape[1],
    "by nothing": lambda v, m: v.sum(),
    "no mean or sum of tokens or rows": lambda v, m: v.sum() / (m.sum() + 1),
}


@pytest.mark.parametrize("words", SHARES)
def test_what_a_micro_batch_is_multiplied_by_is_in_words(words):
    def loss(log_probs, old_log_probs, advantages, mask):
        return SHARES[words](per_token(log_probs, old_log_probs, advantages) * mask, mask)

    assert words in properties.normaliser(Function(loss, "loss")).text


# ------------------------------------------------------------ the report


def test_failures_come_first_and_what_holds_is_one_line(found):
    lines = [line for line in as_text(found).splitlines() if line[2:3] in "✗·✓" and line[2:3]]
    assert [line[2] for line in lines] == sorted((line[2] for line in lines), key="✗·✓".index)
    assert lines[-1].endswith("hold; --all lists them") and "padding" not in lines[-1]
    full = found.table()
    assert "--all" not in full and all(f.text in full for f in found.findings)


def test_numbers_that_a_loss_declares_otherwise_are_named():
    found = audit(right, "dapo")
    (finding,) = (f for f in found.findings if f.name == "parameters")
    assert finding.status == "note" and finding.text == "epsilon_high = 0.2, where 'dapo' declares 0.28"
    assert other_numbers(found.losses[0], {"epsilon_high": 0.2}) == ""


def test_a_loss_that_is_far_from_all_is_not_called_after_one(found):
    def loss(log_probs, advantages, mask):
        return -(log_probs.square() * advantages[:, None].exp() * mask).sum().sqrt()

    far = audit(loss, "dapo")
    assert far.nearest.is_far and not found.nearest.is_far
    alone = replace(far, asked="", differences=())
    assert alone.nearest is None and "none is near" in str(alone) and "dapo" not in str(alone)


# ------------------------------------------------------------ the command


def test_a_parameter_out_of_its_bounds_is_an_error():
    given = {"epsilon_low": 1.5}
    refuses(ParameterError, lambda: audit(right, "dapo", parameters=given), what="epsilon_low")
    refuses(ParameterError, lambda: audit(right, "dapo", parameters={"epsilon_high": -0.2}), what="epsilon_high")


def test_a_report_makes_no_folders(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(
        "def loss(log_probs, advantages, mask):\n    return -(log_probs * advantages[:, None] * mask).sum()\n"
    )
    done = CliRunner().invoke(app, ["audit", f"{file}:loss", "-o", str(tmp_path / "typo" / "report.txt")])
    assert done.exit_code == 2 and "no folder" in done.stderr and not (tmp_path / "typo").exists()


def test_a_lambda_has_a_name_that_can_be_found():
    found = audit(lambda log_probs, advantages, mask: (log_probs * advantages[:, None] * mask).mean(), "reinforce")
    line = test_a_lambda_has_a_name_that_can_be_found.__code__.co_firstlineno + 1
    assert found.name == f"the lambda in line {line}" and "<lambda>" not in str(found)
    assert "value = loss_function(" in str(found)


def test_offsets_are_printed_in_their_dtype():
    def packed(log_probs, old_log_probs, advantages, cu_seqlens):
        assert cu_seqlens.dtype == torch.int32
        lengths = cu_seqlens.diff()
        a = advantages.repeat_interleave(lengths)
        return ((log_probs - old_log_probs).exp() * a).sum() / len(log_probs)

    assert "cu_seqlens = torch.tensor([0, 1], dtype=torch.int32)" in str(audit(packed, "reinforce"))


def test_two_batches_of_a_report_can_be_pasted_into_one_session(found):
    (failure,) = (f for f in found.failures if f.name == "padding")
    session = {"over_the_width": over_the_width}
    exec(shown_batches(found, failure), session)
    assert session["over_the_width"] is over_the_width and session["value"].requires_grad


def test_a_clip_without_a_minimum_is_said_to_stop_what_comes_back():
    """Tokens with A < 0 above the band have no gradient: the mistake of `clamp(ratio) * advantages`."""

    def loss(log_probs, old_log_probs, advantages, mask):
        ratio = torch.exp(torch.where(mask, log_probs - old_log_probs.detach(), 0.0))
        a = advantages.detach()[:, None]
        clipped = ratio.clamp(0.8, 1.2) * a
        return -(torch.where(a > 0, torch.min(ratio * a, clipped), clipped) * mask).sum() / mask.sum()

    def dual(log_probs, old_log_probs, advantages, mask):
        ratio = torch.exp(torch.where(mask, log_probs - old_log_probs.detach(), 0.0))
        a = advantages.detach()[:, None]
        clipped = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
        return -(torch.where(a < 0, torch.max(clipped, 3 * a), clipped) * mask).sum() / mask.sum()

    found = properties.sides(Function(loss, "loss"))
    assert found.status == "note" and found.text.endswith(
        "with A < 0 a bound also stops ratios on their way back to 1, as a clip without min(ratio·A, clip(ratio)·A) does"
    )
    assert properties.sides(Function(dual, "dual")).status == "holds"


def test_bounds_beside_a_term_of_its_own_gradient_are_not_denied():
    def loss(log_probs, old_log_probs, advantages, mask):
        y = torch.where(mask, log_probs - old_log_probs.detach(), 0.0)
        a = advantages.detach()[:, None]
        clipped = torch.min(y.exp() * a, y.exp().clamp(0.8, 1.2) * a)
        return -((clipped - 0.1 * (torch.exp(-y) + y - 1)) * mask).sum() / mask.sum()

    found = properties.sides(Function(loss, "loss"))
    assert found.status == "note" and found.text.startswith("not seen: another term has a gradient")


@pytest.mark.parametrize(
    ("scaled", "words"),
    [(False, "the rewards less the mean of all"), (True, "the rewards standardised over all")],
)
def test_a_mean_of_all_rewards_is_noted_where_groups_are_given(scaled, words):
    def loss(log_probs, old_log_probs, rewards, group_ids, mask):
        a = rewards - rewards.mean()
        a = (a / (rewards.std() + 1e-6) if scaled else a)[:, None]
        return -((log_probs - old_log_probs.detach()).masked_fill(~mask.bool(), 0.0).exp() * a * mask).sum()

    found = properties.baseline(Function(loss, "loss"))
    assert (found.status, found.text) == ("note", f"advantages are {words}, though group_ids are given")
