"""Only one tensor of a call gets a gradient. Any other tensor that requires grad is refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fibration.errors import BatchError, FibrationError, ParameterError

# The tensor that gets a gradient, by program.
GRADIENT_INPUTS = {
    **dict.fromkeys(("evaluate", "objective", "micro"), "only log_probs get a gradient"),
    "prologue": "frozen sums are constants, and have no gradient",
    "gate": "only log_ratio gets a gradient",
    "levels": "levels have no gradient",
    "advantages": "advantages from rewards are constants, and have no gradient",
}


def refuse_graphs(program: str, parameters: object, policies: object, **tensors: object) -> None:
    """Refuse tensors that require grad and get no gradient; `tensors` by argument name.

    Only for calls that record gradients: under `torch.no_grad()` nobody expects a gradient.
    """
    dropped = has_graph(parameters, policies, **tensors)
    if dropped:
        raise refused_graph(program, *dropped)


def has_graph(parameters: object, policies: object, **tensors: object) -> tuple[str, bool] | None:
    """The first argument that requires grad and gets none, and whether it is a parameter; None if there is none."""
    named = {name: t for name, t in tensors.items() if name not in ("log_probs", "log_ratio")}
    if isinstance(policies, Mapping):
        named.update({f"policies[{name!r}]": t for name, t in policies.items()})
    for name, tensor in named.items():
        if requires_grad(tensor):
            return name, False
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            if requires_grad(value):
                return name, True
    return None


def refused_graph(program: str, name: str, is_parameter: bool) -> FibrationError:
    if is_parameter:
        return ParameterError(
            f"parameter '{name}' requires grad",
            required=f"values that do not: {GRADIENT_INPUTS[program]}",
            remedy="pass its .detach(), or a number",
        )
    return BatchError(
        f"{name} {'require' if name.endswith('s') else 'requires'} grad",
        required=f"a tensor that does not: {GRADIENT_INPUTS[program]}",
        remedy=f"pass {name}.detach()",
    )


def requires_grad(value: object) -> bool:
    """Whether a value, or a value inside it, is a tensor that requires grad."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(map(requires_grad, value.values()))
    return isinstance(value, (list, tuple)) and any(map(requires_grad, value))


def differentiated_again() -> BatchError:
    return BatchError(
        "a gradient of this operator is differentiated again",
        required="first derivatives: the coefficients are constants of the backward pass",
        remedy="call backward() without create_graph=True, or detach() the operator's gradient first",
    )
