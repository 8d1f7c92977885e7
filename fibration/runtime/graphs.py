"""One tensor of a call has a gradient. Of any other that requires grad it would be dropped, so that is refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fibration.errors import BatchError, ParameterError

# What has a gradient, by program; of the others, nothing has.
MOVING = {
    **dict.fromkeys(("evaluate", "objective"), "only log_probs get a gradient"),
    "gate": "only log_ratio gets a gradient",
    "levels": "levels have no gradient",
    "advantages": "advantages from rewards are constants, and have no gradient",
}


def refuse_graphs(program: str, parameters: object, policies: object, **tensors: object) -> None:
    """Refuse what requires grad and gets none; `tensors` by the names of arguments.

    For calls that are made while gradients are recorded: under `torch.no_grad()` nobody expects any.
    """
    named = {name: t for name, t in tensors.items() if name not in ("log_probs", "log_ratio")}
    if isinstance(policies, Mapping):
        named |= {f"policies[{name!r}]": t for name, t in policies.items()}
    for name, tensor in named.items():
        if requires_grad(tensor):
            raise BatchError(
                f"{name} {'require' if name.endswith('s') else 'requires'} grad",
                required=f"a tensor that does not: {MOVING[program]}",
                remedy=f"pass {name}.detach()",
            )
    for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
        if requires_grad(value):
            raise ParameterError(
                f"parameter '{name}' requires grad",
                required=f"values that do not: {MOVING[program]}",
                remedy="pass its .detach(), or a number",
            )


def requires_grad(value: object) -> bool:
    """Whether a value, or a value in it, is a tensor that requires grad."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(map(requires_grad, value.values()))
    return isinstance(value, list | tuple) and any(map(requires_grad, value))
