"""What an audit says of functions that newcomers brought: nothing is accused that is right, and nothing wrong is passed."""

import os

import pytest
import torch
from oracles.loss_functions import per_token, token_mean
from support import refuses
from typer.testing import CliRunner

from fibration import AuditError, ParameterError, audit
from fibration.auditing import features, soundness
from fibration.auditing.function import Function
from fibration.auditing.report import shown_batches
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
    found = soundness.precision(Function(function, "function"))
    assert found.status == "fails" and dtype in found.text and found.batch.tokens == 1


@pytest.mark.parametrize("function", [right, mask_in_bfloat16])
def test_a_mask_in_half_precision_is_not_accused(function):
    assert soundness.precision(Function(function, "function")).status == "holds"


# ------------------------------------------------------------ whitening


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8])
def test_whitened_advantages_are_not_accused_of_nan_or_a_sign(correction, epsilon):
    def loss(log_probs, old_log_probs, advantages, mask):
        a = (advantages - advantages.mean()) / (advantages.std(correction=correction) + epsilon)
        return right(log_probs, old_log_probs, a, mask)

    f = Function(loss, "loss")
    assert f.whitens and soundness.finite(f).status == "holds" and soundness.sign(f) is None
    assert not Function(right, "right").whitens


def test_a_huge_ratio_is_found_beside_whitening():
    def loss(log_probs, old_log_probs, advantages, mask):
        a = (advantages - advantages.mean()) / advantages.std()
        return right(log_probs * 50, old_log_probs * 50, a, mask)

    assert soundness.finite(Function(loss, "loss")).status == "fails"


# ------------------------------------------------------------ both batches of a finding


def of_the_first_row(log_probs, old_log_probs, advantages, mask):
    weights = torch.arange(len(mask), dtype=mask.dtype)[:, None] + 1
    return token_mean(per_token(log_probs, old_log_probs, advantages), mask * weights)


def over_the_width(log_probs, old_log_probs, advantages, mask):
    return (per_token(log_probs, old_log_probs, advantages) * mask).mean()


@pytest.mark.parametrize(("function", "name"), [(of_the_first_row, "rows"), (over_the_width, "padding")])
def test_a_finding_about_two_batches_prints_both(function, name):
    found = audit(function, "dapo")
    (finding,) = [f for f in found.failures if f.name == name]
    assert finding.other is not None and finding.other != finding.batch
    text = str(found).split(f"{name}, on the smallest batch found:")[1].split("\n\n")[0]
    one, two = text.split("# and beside it")
    assert one.count("# loss ") == two.count("# loss ") == 1
    assert one.split("# loss ")[1] != two.split("# loss ")[1]


# ------------------------------------------------------------ the rollout engine's weight


def weighted(weight):
    def loss(log_probs, old_log_probs, rollout_log_probs, advantages, mask):
        w = weight(old_log_probs - rollout_log_probs).detach()
        return token_mean(w * per_token(log_probs, old_log_probs, advantages), mask)

    return soundness.engine(Function(loss, "loss"))


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


def test_two_batches_of_a_report_can_be_pasted_into_one_session():
    def loss(log_probs, old_log_probs, advantages, mask):
        return (per_token(log_probs, old_log_probs, advantages) * mask).mean()

    found = audit(loss)
    (failure,) = (f for f in found.failures if f.name == "padding")
    session = {"loss": loss}
    exec(shown_batches(found, failure), session)
    assert session["loss"] is loss and session["value"].requires_grad


def test_a_ratio_of_rows_with_narrow_bounds_reads_later_tokens():
    def loss(log_probs, old_log_probs, advantages, mask):
        ratio = ((log_probs - old_log_probs) * mask).sum(-1).div(mask.sum(-1).clamp(min=1)).exp()
        return -(ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantages).mean()

    finding = features.causal(Function(loss, "loss"))
    assert finding.status == "note" and "later tokens" in finding.text
