"""Functions that cannot be audited: a clear error; and what a function may take and return."""

import json
import os
import sys
from xml.etree import ElementTree

import pytest
import torch
from oracles.loss_functions import per_token, token_mean
from support import refuses
from typer.testing import CliRunner

from fibration import AuditError, ParameterError, audit
from fibration.auditing import properties
from fibration.auditing.batch import drawn
from fibration.auditing.function import Function
from fibration.auditing.report import rendered
from fibration.cli.main import app


def right(log_probs, old_log_probs, advantages, mask):
    return token_mean(per_token(log_probs, old_log_probs, advantages), mask)


def raises(log_probs, advantages, mask):
    return log_probs @ mask


def nan(log_probs, advantages, mask):
    return (log_probs.abs() * -1).sqrt().sum()


def per_row(log_probs, advantages, mask):
    return (log_probs * mask).sum(-1)


def nothing(log_probs, advantages, mask):
    return None


def constant(log_probs, advantages, mask):
    return log_probs.detach().sum()


def random(log_probs, advantages, mask):
    return (log_probs * mask * torch.rand(log_probs.shape)).sum()


def changes_log_probs(log_probs, advantages, mask):
    log_probs.mul_(2)
    return log_probs.sum()


def on_a_gpu(log_probs, advantages, mask):
    return (log_probs.cuda() * mask.cuda()).sum()


def unknown(log_probs, advantages, mask, temperature_of_the_sampler):
    return log_probs.sum()


def no_mask(log_probs, advantages):
    return log_probs.sum()


def number(log_probs, old_log_probs, advantages, mask):
    return right(log_probs, old_log_probs, advantages, mask).item()


def clamps_in_place(log_probs, old_log_probs, advantages, mask):
    return token_mean(-(log_probs - old_log_probs).exp_().clamp_(0.8, 1.2) * advantages[:, None], mask)


class Loss(torch.nn.Module):
    def forward(self, log_probs, advantages, mask):
        return -(log_probs * advantages[:, None] * mask).sum()


class Scorer(torch.nn.Module):
    __name__ = "Scorer"

    def forward(self, hidden):
        return hidden.sum()


def twice(log_probs, logprobs, advantages, mask):
    return log_probs.sum()


def exits(log_probs, advantages, mask):
    raise SystemExit(0)


def returning(name, change):
    def loss(log_probs, old_log_probs, advantages, mask):
        return change(right(log_probs, old_log_probs, advantages, mask))

    loss.__name__ = name
    return loss


class Backward(torch.autograd.Function):
    """The sum of log-probs, whose gradient is what a function makes of it."""

    @staticmethod
    def forward(ctx, log_probs, gradient):
        ctx.gradient, ctx.shape = gradient, log_probs.shape
        return log_probs.sum()

    @staticmethod
    def backward(ctx, of_loss):
        return ctx.gradient(of_loss.expand(ctx.shape)), None


def backward(name, gradient):
    def loss(log_probs, advantages, mask):
        return Backward.apply(log_probs, gradient)

    loss.__name__ = name
    return loss


REFUSED = {
    raises: dict(what="'raises' raises RuntimeError", remedy="a function of three lines"),
    nan: dict(what="'nan' gives nan", required="finite losses"),
    per_row: dict(what="does not return a loss", found="shape [8]", remedy="the mean or the sum"),
    nothing: dict(what="does not return a loss", found="None", remedy="`return loss`"),
    number: dict(what="does not return a loss", found="a float without a gradient", remedy="without .item()"),
    Loss: dict(what="'Loss' is a class", remedy="loss = Loss(...)"),
    Scorer(): dict(what="the argument hidden", found="a Scorer, a torch.nn.Module, which is called with (hidden)"),
    constant: dict(what="has no gradient in the log-probs", remedy="detach"),
    random: dict(what="for the same inputs", remedy="random numbers"),
    changes_log_probs: dict(what="changes log_probs in place", remedy="x.clamp("),
    clamps_in_place: dict(what="changes in place what its gradient needs", found="output 0 of Exp", remedy="r.clamp("),
    unknown: dict(what="the argument temperature_of_the_sampler", remedy="def audited("),
    no_mask: dict(what="has no argument mask", found="(log_probs, advantages)"),
    twice: dict(what="has log_probs and logprobs for one thing"),
    exits: dict(what="'exits' raises SystemExit: 0", found="line"),
    returning("whole", lambda x: x.detach().round().long()): dict(what="does not return a loss", found="int64"),
    returning("complex", lambda x: x * 1j): dict(what="does not return a loss", found="complex128", remedy="floats"),
    returning("meta", lambda x: x.to("meta")): dict(what="does not return a loss", found="on the device meta"),
    returning("sparse", lambda x: x.reshape(1).to_sparse()): dict(what="does not return a loss", found="sparse_coo"),
    backward("b_exits", lambda g: sys.exit(0)): dict(what="'b_exits' raises SystemExit in its backward pass: 0"),
    backward("b_ends", lambda g: os._exit(0)): dict(
        what="'b_ends' raises SystemExit in its backward pass: os._exit(0)"
    ),
    backward("b_raises", lambda g: g[99]): dict(what="raises IndexError in its backward pass", found="line"),
    backward("b_shape", lambda g: g[:1, :1].expand(3, 3)): dict(what="has no gradient: ", found=""),
    backward("b_word", lambda g: "x"): dict(what="'b_word' has no gradient: expected Variable"),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_audited_is_refused_in_words(function):
    refuses(AuditError, lambda: audit(function, "reinforce"), **REFUSED[function])


def test_a_sparse_gradient_is_one():
    sparse, dense = (Function(backward("loss", f), "loss") for f in (lambda g: (2 * g).to_sparse(), lambda g: 2 * g))
    batch = drawn(5, (2, 1), 0.2)
    assert (sparse.evaluate(batch).coefficients == dense.evaluate(batch).coefficients).all()
    assert properties.inputs(sparse).status == "holds"


def test_what_is_no_function_is_refused():
    refuses(AuditError, lambda: audit({}, "reinforce"), what="is no function", found="a dict", remedy="audit(my_loss)")


def clamps(name):
    def loss(log_probs, old_log_probs, advantages, mask):
        {"old": old_log_probs, "advantages": advantages, "log_probs": log_probs.data}[name].clamp_(-20, 20)
        return right(log_probs, old_log_probs, advantages, mask)

    return loss


@pytest.mark.parametrize("name", ["old", "advantages", "log_probs"])
def test_a_clamp_in_place_that_moves_few_numbers_is_found(name):
    found = properties.inputs(Function(clamps(name), "loss"))
    assert found.status == "fails" and f"changes {name}" in found.text and "in place" in found.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_function_that_needs_a_gpu_is_refused():
    refuses(AuditError, lambda: audit(on_a_gpu, "reinforce"), what="'on_a_gpu' raises", required="all on the CPU")


def test_a_loss_that_needs_more_arguments_is_refused():
    missing = dict(required="the argument rollout_log_probs", remedy="add rollout_log_probs")
    refuses(AuditError, lambda: audit(right, "tis"), what="reads log-probs of the policy 'rollout'", **missing)
    refuses(AuditError, lambda: audit(right, "rloo"), what="reads rewards", required="the argument rewards")
    refuses(AuditError, lambda: audit(right, "fiberpo_domain"), what="reads labels of", required="no audit passes")


def test_parameters_are_those_of_the_loss():
    refuses(
        ParameterError, lambda: audit(right, "dapo", parameters={"epsilon_hi": 1}), what="no parameter 'epsilon_hi'"
    )
    refuses(ParameterError, lambda: audit(right, parameters={"epsilon_high": 1}), required="like=")


def test_a_lambda_and_positional_names_are_audited():
    f = Function(lambda a1, b1, c1, d1: token_mean(per_token(a1, b1, c1), d1), "lambda")
    assert f.arguments == {"a1": "log_probs", "b1": "old_log_probs", "c1": "advantages", "d1": "mask"}


@pytest.fixture(scope="module")
def found():
    def wrong(log_probs, old_log_probs, advantages, mask):
        return -right(log_probs, old_log_probs, advantages, mask)

    return audit(wrong, "dapo", name="my.py:wrong")


@pytest.mark.parametrize("format", ["text", "json", "markdown", "junit", "github"])
def test_every_format_names_what_fails(format, found):
    text = rendered(found, format, "my.py")
    assert "my.py:wrong" in text and "against its advantage" in text
    if format == "json":
        assert json.loads(text)["ok"] is False
    if format == "junit":
        assert len(list(ElementTree.fromstring(text).iter("failure"))) == len(found.failures) + 1
    if format == "github":
        assert all(line.startswith("::error file=my.py,") for line in text.splitlines())


def test_the_batch_of_a_report_runs_as_printed():
    def wrong(log_probs, old_log_probs, advantages, mask):
        return (per_token(log_probs, old_log_probs, advantages) * mask).mean()

    found = audit(wrong, "dapo")
    lines = str(found).split("padding, on the smallest batch found:\n")[1].split("\n\n")[0]
    both = lines.split("# and beside it\n")
    assert len(both) == 2
    for part in both:
        world = {"wrong": wrong}
        exec("\n".join(line.strip() for line in part.splitlines()), world)
        said = float(part.split("# loss ")[1].split(",")[0])
        assert float(world["value"].detach()) == pytest.approx(said, rel=1e-5)


@pytest.mark.parametrize(("function", "code"), [("right", 0), ("wrong", 1), ("missing", 2)])
def test_exit_codes(function, code, tmp_path):
    file = tmp_path / "my.py"
    file.write_text(
        "def right(log_probs, advantages, mask):\n    return -(log_probs * advantages[:, None] * mask).sum() / mask.sum()\n"
        "sizes = {}\n"
        "def wrong(log_probs, advantages, mask):\n    return -right(log_probs, advantages, mask)\n"
    )
    done = CliRunner().invoke(app, ["audit", f"{file}:{function}", "--as", "reinforce"])
    assert done.exit_code == code, done.output
    if code == 2:
        other = CliRunner().invoke(app, ["audit", f"{file}:sizes"])
        assert other.exit_code == 2 and f"'sizes' in '{file}' is a dict" in other.stderr
        assert "has no function 'missing'" in done.stderr and "right, wrong" in done.stderr
