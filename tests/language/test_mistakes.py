"""Mistakes that a newcomer makes; each raises an error with a message of the library."""

import math
import pickle

import numpy as np
import pytest
import torch

import fibration
from fibration import FibrationError, MarkovKernel, Parameter, SpecError, clip_gate, residual, strata, uniform
from fibration.errors import an
from fibration.language.conditions import condition
from fibration.runtime.metrics import Mean

token, trajectory, prompt_group, domain = strata("token trajectory prompt_group domain")
C = Parameter("C", default=0.1)
MASK = torch.ones(4, 3, dtype=torch.bool)


@pytest.fixture(scope="module")
def op():
    return fibration.compile(fibration.load("fiberpo_domain"))


@pytest.mark.parametrize("wrap", [list, np.asarray, lambda t: [np.int64(v) for v in t], lambda t: t.tolist()])
def test_labels_are_the_same_in_whatever_container(op, wrap):
    ids = torch.tensor([0, 0, 1, 1])
    index = op.index(mask=MASK, prompt_group=wrap(ids), domain=wrap(ids))
    assert (index.size["prompt_group"], index.size["domain"]) == (2, 2)


@pytest.mark.parametrize("words", ["a token", "an expert", "an image", "a user", "a unit", "an hour", "a NoneType"])
def test_names_get_the_right_article(words):
    assert an(words.partition(" ")[2]) == words


@pytest.mark.parametrize("function", [math.tanh, np.tanh, np.asarray, torch.tanh, float, int])
def test_a_foreign_function_of_a_formula_names_ours(function):
    with pytest.raises(SpecError, match=r"use fibration\.(exp, log, tanh|tanh$)"):
        function(residual)


def test_an_operator_pickles_as_the_hierarchy_it_was_compiled_from(op):
    again = pickle.loads(pickle.dumps(op))
    assert again.hierarchy == op.hierarchy
    assert again.source == op.source


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda op: fibration.compile("ppo"), "fibration.load"),
        (lambda op: strata("token token"), "different names"),
        (lambda op: op.hierarchy.replace(rows="sequence"), "a Stratum"),
        (lambda op: op.hierarchy.replace(gives_up=["first_order"]), "gives_up="),
        (lambda op: op.hierarchy.replace(gate={}), r"no argument 'gate'(.|\n)*did you mean gates=\{token: \.\.\.\}"),
        (lambda op: op.hierarchy.replace(loss={}), "no argument 'loss'\n  required: some of name, "),
        (lambda op: op.loss(None, None, None, None, metrics="kl"), "pass metrics='divergences'"),
        (lambda op: op.loss(None, None, None, None, metrics="gated_ratio/max"), "pass metrics='gated_ratio'"),
        (lambda op: C.check("0.1", "the value"), "a number"),
        (lambda op: C.check(True, "the value"), "a number"),
        (lambda op: fibration.log_prob("reference"), r"\(reference,\) = policies\('reference'\)"),
        (lambda op: fibration.log_prob(fibration.policies("ref")), r"unpack it: \(ref,\)"),
        (lambda op: fibration.count("turn"), r"\(turn,\) = strata\('turn'\)"),
        (lambda op: clip_gate(-0.1), "clip_gate: bound is -0.1"),
        (lambda op: fibration.pessimistic_clip_gate(-0.2, 0.2), "leave its minus sign out"),
        (lambda op: clip_gate(0.1, 0.2), r"pessimistic_clip_gate\(low, high\)"),
    ],
)
def test_a_wrong_argument_is_named(op, mistake, words):
    with pytest.raises(FibrationError, match=words):
        mistake(op)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clipgate(0.1)", "did you mean 'clip_gate'"),
        ("identity_gate", r"write identity_gate\(\)"),
        ("clp(residual, 0, 1)", "clip"),
    ],
)
def test_a_misspelt_constructor_is_suggested(text, words):
    document = fibration.load("fiberpo").model_dump(mode="json")
    with pytest.raises(SpecError, match=words):
        fibration.Hierarchy.model_validate({**document, "gates": {**document["gates"], "token": text}})


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("ratio > 1", r"exp\(token_log_ratio\)"),
        ("advantge > 0", "did you mean 'advantage'"),
        ("on_polcy", "did you mean 'on_policy'"),
        ("advantages=trajectory", "did you mean advantage=trajectory"),
        ("advantage >= 0 and on_policy", "--when twice"),
    ],
)
def test_a_misspelt_condition_is_suggested(when, words):
    with pytest.raises(SpecError, match=words):
        fibration.equivalent(fibration.load("ppo"), fibration.load("grpo"), when)


def test_on_policy_may_be_written_with_a_hyphen():
    assert condition("on-policy", {}) == condition("on_policy", {})


def test_a_refused_kernel_leaves_no_facts():
    h = fibration.load("fiberpo")
    wrong = fibration.Fibration(
        token, trajectory, kernel=MarkovKernel(1 / (fibration.count(token, over=trajectory) + 1))
    )
    assert h.replace(fibrations=[wrong]).verify().facts == ()


def test_identity_gates_pass_where_a_scale_does_not_cancel():
    h = fibration.Hierarchy(
        name="unscaled",
        fibrations=[
            fibration.Fibration(token, trajectory, kernel=uniform()),
            fibration.Fibration(trajectory, prompt_group, kernel=uniform()),
        ],
        gates={s: clip_gate(Parameter(f"c_{s}", default=1000.0)) for s in (token, trajectory, prompt_group)},
        decomposition=fibration.log_ratio(),
        objective=fibration.trajectory_mean(),
    )
    op = fibration.compile(h)
    index = op.index(offsets=[0, 3, 10, 17, 19, 30], prompt_group=["a", "a", "a", "b", "b"])
    x = torch.linspace(-0.3, 0.4, 30, dtype=torch.float64) ** 3
    metrics = op.coefficients(x, torch.zeros_like(x), torch.ones(5, dtype=torch.float64), index).metrics
    assert {k: float(m) for k, m in metrics.items() if "passed" in k and "[" not in k} == {
        "prompt_group/passed": 1, "trajectory/passed": 1, "token/passed": 1,
    }  # fmt: skip
    assert float(metrics["token/clipped"]) == 0


def test_a_zero_gate_on_tokens_clips_no_token():
    op = fibration.compile(fibration.load("gspo"))
    x = torch.full((4, 3), 0.01, dtype=torch.float64)
    metrics = op.loss(x, torch.zeros_like(x), torch.ones(4, dtype=torch.float64), op.index(mask=MASK)).metrics
    clipped = metrics["token/clipped"]
    assert isinstance(clipped, Mean)
    assert float(clipped) == 0
    assert float(metrics["trajectory/limited"]) == 1
