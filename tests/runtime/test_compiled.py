"""torch.compile and torch.func.grad give the results of plain calls, or refuse."""

from __future__ import annotations

import gc
import pickle
import warnings

import numpy as np
import pytest
import torch
from support import operator, refuses, spec
from thread_ranks import on_ranks
from torch._dynamo.testing import CompileCounterWithBackend

from fibration import BatchError, ParameterError, centred, exp, log_prob, policies, reward, strata, token_log_ratio

rollout, _ = policies("rollout old")
domain, prompt_group = strata("domain prompt_group")
BACKEND = "aot_eager"  # forward and backward as graphs, which run as they stand


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="eager", **options):
    """A function under torch.compile in one graph, and what counts how often that is made."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, **{"fullgraph": True, **options}), counter


def a_batch(op, rows, length, seed=0, dtype=torch.float32):
    """Off policy, with a place under the mask."""
    make = torch.Generator().manual_seed(seed)
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[0, -1] = False
    names = [s.name for s in op.hierarchy.order]
    labels = {"prompt_group": [i // 2 for i in range(rows)]} if "prompt_group" in names else {}
    labels |= {"domain": {i: "math" if i % 2 else "code" for i in range(rows)}} if "domain" in names else {}
    old = -torch.rand(rows, length, generator=make, dtype=torch.float64) - 0.5
    new = old + 0.15 * torch.randn(rows, length, generator=make, dtype=torch.float64)
    a = torch.randn(rows, generator=make)
    return new.clamp(max=0).to(dtype), old.to(dtype), a, op.index(mask=mask, **labels)


NARROW = {
    "fiberpo_domain": {
        "C_domain": {"math": {"+": 0.02, "-": 0.01}, "code": 0.05},
        "C_prompt_group": {"+": 0.03, "-": 0.2},
    },
    "gspo": {"epsilon_low": 0.1, "epsilon_high": 0.1},
    "ppo": {},
}


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize("name", NARROW)
def test_torch_compile_makes_one_graph_with_the_results_of_a_call(name):
    """To the bit, and so are metrics; made anew where shapes vary for the first time, and not where values do."""
    op = operator(spec(name))

    def step(x, old, a, index, parameters):
        result = op.loss(x * 1.5 - x / 2, old, a, index, parameters)
        return result.loss * 3, result

    inside, counter = compiled(step, BACKEND)
    for seed, (rows, length) in enumerate([(4, 5), (4, 5), (6, 7), (8, 9), (10, 3)]):
        new, *rest = a_batch(op, rows, length, seed)
        outcome = []
        for function in (step, inside):
            x = new.clone().requires_grad_()
            loss, result = function(x, *rest, NARROW[name])
            loss.backward()
            outcome.append((loss, x.grad, result))
        (loss, gradient, result), (again, same, other) = outcome
        assert torch.equal(loss, again) and torch.equal(gradient, same) and gradient.abs().sum() > 0
        assert {k: repr(m) for k, m in result.metrics.items()} == {k: repr(m) for k, m in other.metrics.items()}
        assert result.scalars("a/") == other.scalars("a/") and len(result.metrics) > 5
    assert counter.frame_count <= 3


def test_other_parameter_values_do_not_recompile():
    """Beyond the second: torch.compile takes a number for a constant until it has seen another."""
    op = operator(spec("fiberpo"))
    new, old, a, index = a_batch(op, 4, 5)

    def step(x, parameters):
        return op.coefficients(x, old, a, index, parameters, metrics=False).values * 2

    inside, counter = compiled(step, BACKEND)
    for minus in (0.01, 0.02, 0.03, 0.05, 0.07, 0.2):
        given = {"C_trajectory": {"+": 0.2, "-": minus}, "epsilon": torch.tensor(2 * minus)}
        assert torch.equal(step(new, given), inside(new, given))
    assert counter.frame_count <= 3


def test_torch_compile_accepts_rewards_policies_metrics_and_bfloat16():
    """Rewards, policies, metrics by name, bfloat16; a gate and its own gradient."""
    made = spec("grpo").replace(
        name="all",
        objective=spec("grpo").objective.weigh(log_prob(rollout)),
        advantages=centred(reward, over=prompt_group),
        groups=[prompt_group],
    )
    op = operator(made)
    index = op.index(mask=torch.ones(4, 3), prompt_group=["a", "a", "b", "b"])
    new, old, *_ = a_batch(operator(spec("grpo")), 4, 3)
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0])

    def step(x, given):
        result = op.loss(x, old, index=index, rewards=rewards, policies=given, metrics="weights")
        return result.loss, result

    inside, _ = compiled(step)
    results = []
    for function in (step, inside):
        x = new.clone().requires_grad_()
        loss, result = function(x, {"rollout": old - 0.1})
        loss.backward()
        results.append((loss.tolist(), x.grad.tolist(), {k: repr(v) for k, v in result.metrics.items()}))
    assert results[0] == results[1] and {k.split("/")[0] for k in results[0][2]} == {"weight"}

    gated = operator(spec("fiberpo"))
    new, old, a, index = a_batch(gated, 4, 5, dtype=torch.float64)
    inside, _ = compiled(lambda x, at: gated.gate(x * 1.0, at, {"epsilon": 0.02}) * 2)
    weights = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(4, 5)
    one, other = ((new - old).requires_grad_() for _ in range(2))
    first, second = gated.gate(one * 1.0, index, {"epsilon": 0.02}) * 2, inside(other, index)
    assert torch.equal(first, second)
    assert torch.equal(*(torch.autograd.grad(g, x, weights)[0] for g, x in ((first, one), (second, other))))


def test_index_and_levels_break_the_graph():
    """An index, levels, and metrics that are read: made by Python, where one graph is not asked for."""
    op = operator(spec("fiberpo"))
    new, old, a, _ = a_batch(op, 4, 5)

    def step(x, mask):
        index = op.index(mask=mask)
        drift = op.levels(x - old, index).residual["trajectory", "+"]
        result = op.loss(x, old, a, index)
        return result.loss + drift.sum(), float(result.metrics["tv"])

    inside, _ = compiled(step, fullgraph=False)
    mask = torch.ones(4, 5)
    (loss, tv), (again, same) = step(new, mask), inside(new, mask)
    assert torch.equal(loss, again) and tv == same > 0


def test_errors_under_torch_compile_are_those_of_a_call():
    op = operator(spec("fiberpo"))
    new, old, a, index = a_batch(op, 4, 5)
    inside, _ = compiled(lambda x, old, a, index, given: op.loss(x * 1.0, old, a, index, given).loss)
    epsilon = torch.tensor(0.1, requires_grad=True)
    refuses(
        BatchError, lambda: inside(new, old.clone().requires_grad_(), a, index, {}), what="old_log_probs require grad"
    )
    refuses(
        ParameterError,
        lambda: inside(new, old, a, index, {"epsilon": epsilon}),
        what="parameter 'epsilon' requires grad",
    )
    refuses(BatchError, lambda: inside(new, old[:, :3], a, index, {}), what="old_log_probs has shape [4, 3]")
    refuses(
        BatchError,
        lambda: inside(new * torch.nan, old, a, index, {}),
        what="log_probs of token [0, 0] of trajectory 0 is nan",
    )
    refuses(BatchError, lambda: inside(new, old, a, None, {}), what="no index is given")
    refuses(ParameterError, lambda: inside(new, old, a, index, {"width": 0.1}), what="no parameter 'width'")


def test_an_index_must_live_until_the_backward_pass():
    op = operator(spec("fiberpo"))
    new, old, _, index = a_batch(op, 4, 5)
    inside, _ = compiled(lambda x, at: op.gate(x * 1.0, at).sum())
    x = (new - old).requires_grad_()
    loss = inside(x, index)
    del index
    gc.collect()
    refuses(BatchError, loss.backward, what="an index that no longer exists", remedy="keep a reference")


def test_copies_of_an_index_have_different_handles():
    """A number of one process means nothing in another, and a dead index is no other's."""
    op = operator(spec("fiberpo"), "c")
    new, old, a, index = a_batch(op, 4, 5)
    op.loss(new, old, a, index)  # leaves in it what generated functions know it by
    other = pickle.loads(pickle.dumps(index))
    assert int(other.handle) != int(index.handle)
    inside, _ = compiled(lambda x, at: op.coefficients(x, old, a, at, metrics=False).values * 1)
    expected = inside(new, index)
    del index
    gc.collect()
    assert torch.equal(inside(new, other), expected)


# ---------------------------------------------------------------- torch.func, tracers


def closure():
    op = operator(spec("fiberpo"))
    new, old, a, index = a_batch(op, 4, 5, dtype=torch.float64)
    loss = lambda x: op.loss(x, old, a, index, {"epsilon": 0.02}).loss  # noqa: E731
    return op, new, old, a, index, loss


def test_torch_func_grad_equals_the_gradient():
    op, new, old, a, index, loss = closure()
    x = new.clone().requires_grad_()
    loss(x.sin()).backward()
    assert torch.equal(torch.func.grad(lambda y: loss(y.sin()))(new), x.grad)
    value, pull = torch.func.vjp(loss, new.sin())
    assert torch.equal(value, loss(new.sin()))
    assert torch.equal(pull(torch.ones((), dtype=torch.float64))[0] * new.cos(), x.grad)
    ratio = (new - old).requires_grad_()
    op.gate(ratio, index).square().sum().backward()
    assert torch.equal(torch.func.grad(lambda y: op.gate(y, index).square().sum())(ratio.detach()), ratio.grad)
    gated, pull = torch.func.vjp(lambda y: op.gate(y, index).square(), ratio.detach())
    assert torch.equal(pull(torch.ones_like(gated))[0], ratio.grad)


def test_a_loss_is_a_ranks_share_in_a_transform_too():
    op = operator(spec("grpo"))
    old, a = torch.full((3,), -1.0, dtype=torch.float64), torch.tensor([1.0, -2.0], dtype=torch.float64)

    def work(group):
        index = op.index(offsets=[0, 2, 3], group=group)
        loss = lambda x: op.loss(x, old, a, index, metrics=False).loss  # noqa: E731
        return torch.func.vjp(loss, old + 0.1)[0].item(), loss(old + 0.1).item()

    for followed, plain in on_ranks(2, work):
        assert followed == plain != 0


def test_parameters_per_label_work_under_torch_compile():
    """numpy's text is text, and None stands for all others."""
    op = operator(spec("fiberpo_domain"))
    new, old, a, index = a_batch(op, 4, 5, dtype=torch.float64)
    for budgets in ({np.str_("math"): 0.01, None: 0.05}, {"math": np.float64(0.01), "code": 0.05}):
        loss = lambda x, c=budgets: op.loss(x, old, a, index, {"C_domain": c}).loss  # noqa: E731
        x = new.clone().requires_grad_()
        loss(x).backward()
        assert torch.equal(torch.func.grad(loss)(new), x.grad)
    refuses(
        ParameterError, lambda: torch.func.grad(lambda x: op.loss(x, old, a, index, {"C_domain": {b"math": 0.1}}).loss)(new),
        what="the label b'math'", found="bytes", remedy="text or numbers",
    )  # fmt: skip


def fake(loss, x):
    with torch._subclasses.FakeTensorMode() as mode:
        return loss(mode.from_tensor(x))


def dual(loss, x):
    with torch.autograd.forward_ad.dual_level():
        return loss(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


class Model(torch.nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, x):
        return self.loss(x)


REFUSED = {
    "vmap": (lambda loss, x: torch.func.vmap(loss)(x[None]), "torch.func.vmap", "in a loop"),
    "jvp": (lambda loss, x: torch.func.jvp(loss, (x,), (x,)), "torch.func.jvp", "torch.func.grad"),
    "forward mode": (dual, "forward-mode differentiation", "torch.func.grad"),
    "grad of grad": (
        lambda loss, x: torch.func.grad(lambda y: torch.func.grad(loss)(y).sum())(x), "differentiated again", "detach()"),
    "hessian": (lambda loss, x: torch.func.hessian(loss)(x), "torch.func.vmap", "in a loop"),
    "jit": (lambda loss, x: torch.jit.trace(loss, (x,)), "torch.jit.trace", "call it outside"),
    "fx": (lambda loss, x: torch.fx.symbolic_trace(loss), "torch.fx", "torch.fx.wrap"),
    "make_fx": (lambda loss, x: torch.fx.experimental.proxy_tensor.make_fx(loss)(x), "ProxyTorchDispatchMode", "call it outside"),
    "fake": (fake, "FakeTensorMode", "call it outside"),
    "export": (lambda loss, x: torch.export.export(Model(loss), (x,), strict=False), "FakeTensorMode", "call it outside"),
    "nested": (lambda loss, x: loss(torch.nested.nested_tensor(list(x))), "nested Tensor", "padded or packed"),
    "sparse": (lambda loss, x: loss(x.to_sparse()), "torch.sparse_coo", "padded or packed"),
    "meta": (lambda loss, x: loss(x.to("meta")), "log_probs is on meta", "move the tensor"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", REFUSED)
def test_unsupported_calls_under_compile_are_refused(which):
    *_, new, _, _, _, loss = closure()
    call, what, remedy = REFUSED[which]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit and nested tensors announce that they will change
        refuses(BatchError, lambda: call(loss, new), what=what, remedy=remedy)
        loss(new)  # the index keeps it, and a second call of its kind is not checked
        refuses(BatchError, lambda: call(loss, new), what=what, remedy=remedy)


def test_calls_without_a_gradient_are_refused_under_torch_compile():
    op, new, old, a, index, _ = closure()
    for inner in (
        lambda x: op.levels(x - old, index).residual["trajectory", "+"].sum(),
        lambda x: op.index(mask=torch.ones(4, 5)) and x.sum(),
    ):
        refuses(
            BatchError,
            lambda inner=inner: torch.func.grad(inner)(new),
            what="a transform of torch.func",
            remedy="outside",
        )


@pytest.mark.parametrize("metrics", [True, "weights"])
def test_metrics_with_counts_of_their_own_have_room_under_torch_compile(metrics):
    """Means of weights are over kept tokens, whose number every call computes."""
    weighed = (
        spec("ppo").objective.keep(token_log_ratio <= 0.2).weigh(exp(token_log_ratio)).weigh(exp(-token_log_ratio))
    )
    op = operator(spec("ppo").replace(name="keeps", objective=weighed))
    new, old, a, index = a_batch(op, 4, 5)

    def step(x):
        return op.loss(x, old, a, index, metrics=metrics)

    inside, _ = compiled(step)
    results = [{k: repr(m) for k, m in f(new).metrics.items()} for f in (step, inside)]
    assert results[0] == results[1] and "weight_2/mean" in results[0]
