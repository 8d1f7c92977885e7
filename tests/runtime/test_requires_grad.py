"""One tensor of a call has a gradient. Any other tensor that requires grad is refused."""

import pytest
import torch
from support import operator, refuses, token, trajectory

from fibration import (
    Attribute,
    BatchError,
    Fibration,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    Parameter,
    ParameterError,
    Stratum,
    advantage,
    centred,
    clip,
    clip_gate,
    log_prob,
    policies,
    residual,
    reward,
    signed_log_ratio,
    token_mean,
    uniform,
    where,
)

(rollout,) = policies("rollout")
NOW = torch.tensor([-1.0, -0.7, -2.0, -0.4, -1.5])
OLD = NOW - torch.tensor([0.1, -0.3, 0.05, 0.2, -0.02])
wide, epsilon = Parameter("wide", on=trajectory, per_channel=True, default=0.1), Parameter("epsilon", default=0.15)
size = Attribute("size", on=trajectory)
# Its gates read all that there is to give.
ALL = Hierarchy(
    name="all",
    fibrations=[Fibration(token, trajectory, uniform())],
    gates={
        trajectory: clip_gate(wide * size),
        token: Gate(where((advantage > 0) & (log_prob(rollout) < -0.5), clip(residual, -epsilon, epsilon), residual)),
    },
    decomposition=signed_log_ratio(),
    objective=token_mean(),
    advantages=centred(reward, over=Stratum("batch")),
)


def calls(op, index, graph, **changed):
    """Every call, with what it is given: data but for `changed`, and its own tensor with a graph if `graph`."""
    given = {
        "old_log_probs": OLD,
        "rollout": OLD - 0.1,
        "advantages": torch.tensor([1.0, -1.0]),
        "parameters": {},
        **changed,
    }
    now = NOW.clone().requires_grad_(graph)
    ratio = (NOW - OLD).requires_grad_(graph)
    which = {"rewards": given["rewards"]} if "rewards" in given else {"advantages": given["advantages"]}
    more = dict(index=index, parameters=given["parameters"], policies={"rollout": given["rollout"]})
    of_pair = {"log_probs": now, "old_log_probs": given["old_log_probs"], **which, **more}
    of_ratio = {"log_ratio": ratio, **which, **more}
    yield "loss", lambda: op.loss(**of_pair)
    yield "coefficients", lambda: op.coefficients(**of_pair, metrics=False)
    yield "gate", lambda: op.gate(**of_ratio)
    yield "levels", lambda: op.levels(**of_ratio)
    if "rewards" in which:
        yield "advantages", lambda: op.advantages(which["rewards"], **more)


def grad(*values):
    return torch.tensor(values, requires_grad=True)


REFUSED = {
    "old log-probs": ({"old_log_probs": OLD.clone().requires_grad_()}, {"loss", "coefficients"}, BatchError, "old_log_probs require grad"),
    "advantages": ({"advantages": grad(1.0, -1.0)}, {"loss", "coefficients", "gate", "levels"}, BatchError, "advantages require grad"),
    "rewards": ({"rewards": grad(1.0, -1.0)}, {"loss", "coefficients", "gate", "levels", "advantages"}, BatchError, "rewards require grad"),
    "a policy": ({"rollout": (OLD - 0.1).requires_grad_()}, {"loss", "coefficients", "gate", "levels"}, BatchError, "policies['rollout'] requires grad"),
    "a number": ({"parameters": {"epsilon": grad(0.2)[0]}}, {"loss", "coefficients", "gate", "levels"}, ParameterError, "parameter 'epsilon' requires grad"),
    "a pair": ({"parameters": {"wide": {None: grad(0.1, 0.2)}}}, {"loss", "coefficients", "gate", "levels"}, ParameterError, "parameter 'wide' requires grad"),
    "per channel": ({"parameters": {"wide": {"+": 0.1, "-": grad(0.2)[0]}}}, {"loss", "coefficients", "gate", "levels"}, ParameterError, "parameter 'wide' requires grad"),
    "per label": ({"parameters": {"wide": {0: 0.1, 1: {"+": grad(0.2)[0], "-": 0.1}}}}, {"loss", "coefficients", "gate", "levels"}, ParameterError, "parameter 'wide' requires grad"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", REFUSED)
def test_an_input_that_would_get_no_gradient_is_refused(which):
    """Not under no_grad: there it is data, with the results of data."""
    changed, of, kind, what = REFUSED[which]
    op = operator(ALL)
    index = op.index(offsets=[0, 3, 5], attributes={"size": [1.0, 2.0]})
    plain = {name: _plain(value) for name, value in changed.items()}
    for graph in (True, False):
        for name, call in calls(op, index, graph, **changed):
            if name in of:
                ways = {
                    "levels": "levels have no gradient",
                    "gate": "only log_ratio gets a gradient",
                    "advantages": "constants",
                }
                refuses(
                    kind, call, what=what, required=ways.get(name, "only log_probs get a gradient"), remedy=".detach()"
                )
    with torch.no_grad():
        found = [call() for _, call in calls(op, index, True, **changed)]
        expected = [call() for _, call in calls(op, index, False, **plain)]
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _plain(value):
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    values = [v for v in vars(result).values() if isinstance(v, torch.Tensor)]
    return values or [t for v in vars(result).values() for t in v.values()]


def test_log_probs_may_require_grad():
    op = operator(ALL)
    index = op.index(offsets=[0, 3, 5], attributes={"size": [1.0, 2.0]})
    for _, call in calls(op, index, True):
        call()


@pytest.mark.parametrize("size", [grad(1.0, 2.0), [1.0, grad(2.0)[0]], {0: 1.0, 1: grad(2.0)[0]}])
def test_attributes_that_require_grad_are_refused(size):
    op = operator(ALL)
    make = lambda: op.index(offsets=[0, 3, 5], trajectory=[0, 1], attributes={"size": size})  # noqa: E731
    refuses(HierarchyIndexError, make, what="attribute 'size' requires grad", remedy=".detach()")
    with torch.no_grad():
        assert make().values["size"].tolist() == [1.0, 2.0]
