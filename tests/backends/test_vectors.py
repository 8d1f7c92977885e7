"""Recorded numbers: closed forms of the paper's operators, and the policy losses of verl."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Batch, Layout, operator, packed, padded, spec, token, trajectory
from thorough import some

from fibration import dual_clip_gate, log_clip_gate, pessimistic_clip_gate, token_mean, trajectory_mean

VECTORS = Path(__file__).parents[1] / "vectors"
CLOSED = json.loads((VECTORS / "closed_forms.json").read_text())["cases"]
TRAINER = json.loads((VECTORS / "verl_losses.json").read_text())["cases"]
DOMAIN_LEVELS = ("domain", "prompt_group", "trajectory")


def batch_of(case):
    row = np.array(case["trajectory_of_token"])
    groups = case["group_of_trajectory"]
    return Batch(
        lengths=tuple(np.bincount(row).tolist()),
        x=np.array(case["log_ratio"]),
        advantages=np.array(case["advantage"]),
        labels={
            "prompt_group": [f"prompt {g}" for g in groups],
            "domain": [f"domain {case['domain_of_group'][g]}" for g in groups],
        },
        parameters=parameters_of(case),
    )


def parameters_of(case):
    return {
        "epsilon": case["epsilon"],
        **{f"C_{level}": dict(zip("+-", case["budgets"][level], strict=True)) for level in DOMAIN_LEVELS},
    }


def chosen(name, batch):
    """The parameters that a hierarchy has."""
    return {k: v for k, v in batch.parameters.items() if k in spec(name).parameters}


def shuffled(op, batch, seed):
    """Padded, rows in another order, gaps between the tokens; `read` gives the original order back."""
    order = np.random.default_rng(seed).permutation(len(batch.lengths)).tolist()
    moved, places = batch.permuted(order)
    layout = padded(op, moved, seed)
    slots = np.empty(batch.tokens, int)
    slots[places] = layout.slots
    return Layout(layout.index, slots, layout.shape)


LAYOUTS = {"packed": lambda op, batch, seed: packed(op, batch), "padded": shuffled}
PRECISIONS = {torch.float64: 1e-10, torch.float32: 2e-5}


def close(found, expected, tolerance):
    """Relative to the largest entry: coefficients of one batch are compared with each other when they train a model."""
    expected = np.asarray(expected)
    scale = max(np.abs(expected).max(), 1e-30)
    assert np.abs(np.asarray(found) - expected).max() <= tolerance * scale


@pytest.mark.sampled
@pytest.mark.parametrize("number", some(range(len(CLOSED)), 2))
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("layout_of", LAYOUTS)
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_fiberpo_matches_its_closed_form(operator, name, layout_of, dtype, number):
    case, tolerance = CLOSED[number], PRECISIONS[dtype]
    expected, batch, op = case[name], batch_of(case), operator(spec(name))
    layout = LAYOUTS[layout_of](op, batch, number)
    garbage = [float("nan"), 1e30, float("inf")][number % 3]
    x = layout.tensor(batch.x, dtype, garbage)
    old = layout.tensor(np.linspace(-3, 0, batch.tokens), torch.float64, garbage)
    now = (old + layout.tensor(batch.x, torch.float64, garbage)).to(torch.float64)
    advantages = layout.tensor(batch.advantages, dtype, garbage)
    values = chosen(name, batch)

    assert layout.read(op.gate(x, layout.index, values)) == pytest.approx(expected["gated_ratio"], rel=tolerance)
    if dtype == torch.float64:
        # log-probs with a difference, which costs a few digits of x
        close(
            layout.read(op.coefficients(now, old, advantages, layout.index, values).values),
            expected["coefficients"],
            1e-9,
        )
    result = op.coefficients(x, torch.zeros_like(x).masked_fill_(x.isnan(), garbage), advantages, layout.index, values)
    close(layout.read(result.values), expected["coefficients"], tolerance)
    assert float(result.objective) == pytest.approx(expected["objective"], rel=tolerance, abs=tolerance)
    assert layout.read(result.values) == pytest.approx(expected["coefficients"], rel=tolerance, abs=tolerance * 1e-2)


@pytest.mark.parametrize("number", [i for i, c in enumerate(CLOSED) if c["fiberpo"]["jacobian"] is not None])
def test_the_jacobian_of_fiberpo_equals_the_papers(number):
    """dG_i/dr_j (eq:fiberpo_jacobian), row by row from the backward of `gate`."""
    case = CLOSED[number]
    batch, op = batch_of(case), operator(spec("fiberpo"))
    layout = packed(op, batch)
    x = layout.tensor(batch.x).requires_grad_()
    gated = op.gate(x, layout.index, chosen("fiberpo", batch))
    rows = [torch.autograd.grad(gated[i], x, retain_graph=True)[0] for i in range(batch.tokens)]
    jacobian = torch.stack(rows) / x.detach().exp()  # d/dr = (d/dx)/r
    assert jacobian.numpy() == pytest.approx(np.array(case["fiberpo"]["jacobian"]), rel=1e-10, abs=1e-14)
    same = batch.row[:, None] == batch.row[None, :]
    assert (jacobian.numpy()[~same] == 0).all()


def clip_only(gate):
    return spec("grpo").replace(name="clip_only", gates={token: gate})


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(CLOSED)))
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("layout_of", LAYOUTS)
def test_gated_ratios_of_ppo_equal_the_closed_form(layout_of, dtype, number):
    """The convention is the pessimistic one: the bound that the advantage pushes against."""
    case, tolerance = CLOSED[number], PRECISIONS[dtype]
    batch = batch_of(case)
    low, high = case["ppo"]["bounds"]
    for h, values in [
        (spec("grpo"), {"epsilon_low": low, "epsilon_high": high}),
        (spec("ppo"), {"epsilon_low": low, "epsilon_high": high, "ceiling": 100}),
        (clip_only(pessimistic_clip_gate(low, high)), {}),
        (clip_only(dual_clip_gate(low, high, 100)), {}),
    ]:
        op = operator(h)
        layout = LAYOUTS[layout_of](op, batch, number)
        gated = op.gate(
            layout.tensor(batch.x, dtype), layout.index, values, advantages=layout.tensor(batch.advantages, dtype)
        )
        assert layout.read(gated) == pytest.approx(case["ppo"]["gated_ratio"], rel=tolerance)


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(CLOSED)))
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_gated_ratios_of_gspo_equal_the_closed_form(dtype, number):
    case, tolerance = CLOSED[number], PRECISIONS[dtype]
    batch = batch_of(case)
    low, high = case["gspo"]["bounds"]
    per_row = torch.tensor(case["gspo"]["advantage_of_trajectory"], dtype=dtype)
    fixed = spec("gspo").replace(name="fixed", gates={**spec("gspo").gates, trajectory: log_clip_gate(low, high)})
    for h, values in [(spec("gspo"), {"epsilon_low": low, "epsilon_high": high}), (fixed, {})]:
        op = operator(h)
        layout = packed(op, batch)
        gated = op.gate(layout.tensor(batch.x, dtype), layout.index, values, advantages=per_row)
        assert layout.read(gated) == pytest.approx(case["gspo"]["gated_ratio"], rel=tolerance)


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(CLOSED)))
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("layout_of", LAYOUTS)
def test_gated_ratios_of_apc_obj_equal_the_closed_form(operator, layout_of, dtype, number):
    """eq:apc_obj_gating: what the others at a token's state leave of the budget, from both sign channels."""
    case, tolerance = CLOSED[number], PRECISIONS[dtype]
    batch = replace(batch_of(case), token_labels={"state": case["apc"]["state_of_token"]})
    op = operator(spec("apc_obj"))
    layout = LAYOUTS[layout_of](op, batch, number)
    gated = op.gate(layout.tensor(batch.x, dtype), layout.index, {"delta": case["apc"]["delta"]})
    assert layout.read(gated) == pytest.approx(case["apc"]["gated_ratio"], rel=tolerance)


# ---------------------------------------------------------------- a public trainer's losses

MEANS = {"seq-mean-token-mean": trajectory_mean(), "token-mean": token_mean()}
LOSSES = ["vanilla", "gspo", "sapo", "cispo"]
AGGREGATED = [(loss, mean) for loss in LOSSES for mean in MEANS if f"{loss}/{mean}" in TRAINER[0]["losses"]]


def trainer_setting(loss, mean, settings):
    """The shipped hierarchy, its aggregation, and its parameters by the trainer's names."""
    h = spec({"vanilla": "ppo"}.get(loss, loss))
    h = h.replace(objective=MEANS[mean].score() if h.objective.estimator == "score" else MEANS[mean])
    if loss == "sapo":
        return h, {"tau_pos": settings["tau_pos"], "tau_neg": settings["tau_neg"]}
    values = {"epsilon_low": settings["clip_ratio_low"], "epsilon_high": settings["clip_ratio_high"]}
    return h, {**values, **({"ceiling": 3.0} if loss == "vanilla" else {})}


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(TRAINER)))
@pytest.mark.parametrize(("loss", "mean"), AGGREGATED)
@pytest.mark.parametrize("layout_of", ["padded", "packed"])
def test_losses_and_gradients_equal_recorded_ones_of_verl(operator, loss, mean, layout_of, number):
    """`vanilla` is PPO with dual clip at 3; advantages are per trajectory."""
    case = TRAINER[number]
    expected = case["losses"][f"{loss}/{mean}"]
    settings = expected["settings"]
    h, values = trainer_setting(loss, mean, settings)
    op = operator(h)
    now = torch.tensor(case["log_prob"], dtype=torch.float64)
    old = torch.tensor(case["old_log_prob"], dtype=torch.float64)
    lengths = torch.tensor(case["length"])
    mask = torch.arange(now.shape[1]) < lengths[:, None]
    gradient = torch.tensor(expected["gradient"], dtype=torch.float64)
    if layout_of == "padded":
        index = op.index(mask=mask)
    else:
        index = op.index(offsets=[0, *lengths.cumsum(0).tolist()])
        now, old, gradient = now[mask], old[mask], gradient[mask]
    now = now.requires_grad_()
    found = op.loss(now, old, torch.tensor(case["advantage"], dtype=torch.float64), index, values)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(expected["loss"], rel=1e-9, abs=1e-12)
    assert now.grad.numpy() == pytest.approx(gradient.numpy(), rel=1e-9, abs=1e-12)
    assert np.abs(gradient.numpy()).max() > 1e-3
