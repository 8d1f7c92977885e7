"""The sampled tokens of one call: their mask, the elements that they lie over, and sums over an element.

The paper's augmented space (app:estimation) is a list of tokens, each with a state, an action, a trajectory and a time
step. Here each column is a tensor, and all have one shape: packed `[N]`, or padded `[B, T]` with a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fibration.errors import BatchError, HierarchyIndexError, ParameterError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class PerElement:
    """One number per state or per trajectory that has an unmasked token, in increasing order of its id.

    `ids` int64 [E], `values` float64 [E], `counts` int64 [E]: the element's number of unmasked tokens (`T_s`, `T_τ`).
    """

    ids: Tensor
    values: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class Elements:
    """The states, or the trajectories, or the pairs, that the unmasked tokens lie over."""

    ids: Tensor  # int64 [E], increasing
    of_token: Tensor  # int64 [n], positions in `ids`
    counts: Tensor  # int64 [E]

    def total(self, values: Tensor) -> Tensor:
        """Sums over every element: float64 [E]."""
        return torch.zeros(len(self.ids), dtype=torch.float64, device=values.device).index_add(0, self.of_token, values)

    def mean(self, values: Tensor) -> Tensor:
        """Means over every element: float64 [E]."""
        return self.total(values) / self.counts

    def per_element(self, values: Tensor) -> PerElement:
        return PerElement(self.ids, values, self.counts)


class Tokens:
    """The unmasked tokens of one call. Values under the mask are never read, so they may be NaN or infinite."""

    def __init__(self, name: str, first: Tensor, mask: Tensor | None) -> None:
        """`first` is a tensor over the tokens, called `name` in messages. All other tensors must have its shape."""
        if not isinstance(first, Tensor):
            raise BatchError(f"{name}: {type(first).__name__}", required="a tensor with one entry per token")
        self.name, self.shape, self.device = name, tuple(first.shape), first.device
        if not first.numel():
            raise HierarchyIndexError(
                f"{name} has shape {list(first.shape)}: there is no token",
                required="at least one token",
                remedy="skip the update for this batch",
            )
        self.keep = torch.ones(self.shape, dtype=torch.bool, device=self.device) if mask is None else self._mask(mask)

    def _mask(self, mask: Tensor) -> Tensor:
        self._check_place("mask", mask)
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise HierarchyIndexError("the mask holds values other than 0 and 1", required="booleans, or 0 and 1")
        keep = mask.bool()
        if not bool(keep.any()):
            raise HierarchyIndexError(
                "the mask keeps no token",
                required="at least one unmasked token",
                found=f"shape {list(self.shape)}, nothing unmasked",
                remedy="skip the update for this batch",
            )
        return keep

    def _check_place(self, name: str, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise BatchError(f"{name}: {type(tensor).__name__}", required="a tensor with one entry per token")
        if tuple(tensor.shape) != self.shape:
            raise BatchError(
                f"{name} has shape {list(tensor.shape)}", required=f"{list(self.shape)}, the shape of {self.name}"
            )
        if tensor.device != self.device:
            raise BatchError(f"{name} is on {tensor.device}", required=f"{self.device}, where {self.name} lies")

    def place(self, token: int) -> str:
        """Names the unmasked token with this number, for messages, by its position in the caller's shape."""
        return f"token {self.keep.nonzero()[token].tolist()}"

    def numbers(self, name: str, tensor: Tensor) -> Tensor:
        """The values of the unmasked tokens, float64 [n]; an error if one is not finite. Differentiable."""
        self._check_place(name, tensor)
        if tensor.dtype not in FLOATS:
            raise BatchError(
                f"{name}: {tensor.dtype}",
                required="a tensor of float32, bfloat16, float16 or float64",
                remedy=f"pass {name}.double()",
            )
        values = tensor[self.keep].double()
        token = first(~torch.isfinite(values))
        if token is not None:
            raise BatchError(
                f"{name} of {self.place(token)} is {float(values.detach()[token]):g}",
                required="finite values on every unmasked token",
                remedy="mask the token, or look for an overflow in the model's log-probs",
            )
        return values

    def deviations(self, log_ratio: Tensor) -> Tensor:
        """`r - 1` of the unmasked tokens, without the cancellation of `exp(x) - 1`: float64 [n]. Differentiable."""
        x = self.numbers("log_ratio", log_ratio)
        deviation = torch.expm1(x)
        token = first(~torch.isfinite(deviation))
        if token is not None:
            raise BatchError(
                f"log_ratio of {self.place(token)} is {float(x.detach()[token]):g}: its ratio is no float64",
                required="log ratios (new minus old log-prob, in nats) of at most 709",
                remedy="mask the token, or look for an old log-prob of -inf",
            )
        return deviation

    def integers(self, name: str, tensor: Tensor) -> Tensor:
        """Integers of the unmasked tokens: int64 [n]."""
        self._check_place(name, tensor)
        if tensor.dtype not in INTEGERS:
            raise HierarchyIndexError(
                f"{name}: {tensor.dtype}", required="one integer per token", remedy=f"pass {name}.long()"
            )
        return tensor[self.keep].long()

    def elements(self, name: str, tensor: Tensor) -> Elements:
        """The distinct ids of the unmasked tokens."""
        return elements(self.integers(name, tensor))

    def spread(self, values: Tensor, fill: float) -> Tensor:
        """One value per unmasked token, back in the caller's shape, with `fill` under the mask. Differentiable."""
        result = torch.full(self.shape, fill, dtype=values.dtype, device=self.device)
        return result.masked_scatter(self.keep, values)


def first(wrong: Tensor) -> int | None:
    """The position of the first true entry of `wrong`, or None."""
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None


def of_states(name: str, first: Tensor, state: Tensor, mask: Tensor | None) -> tuple[Tokens, Elements]:
    """The unmasked tokens of `first`, and the states that they lie over."""
    tokens = Tokens(name, first, mask)
    return tokens, tokens.elements("state", state)


def elements(labels: Tensor) -> Elements:
    """The distinct values of an int64 [n] tensor."""
    return Elements(*torch.unique(labels, return_inverse=True, return_counts=True))


def number_in(name: str, value: float | Tensor, rule: str, allowed: tuple[float, float], closed: str) -> Tensor:
    """A parameter as float64. Every entry must lie in `allowed`; `closed` is `[]`, `(]`, ... for its closed ends."""
    try:
        number = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ParameterError(f"{name} is {value!r}", required=rule) from None
    low, high = allowed
    inside = (number >= low if closed[0] == "[" else number > low) & (
        number <= high if closed[1] == "]" else number < high
    )
    if not bool(inside.all()):
        found = float(number.reshape(-1)[(~inside).reshape(-1)][0])
        raise ParameterError(f"{name} is {found:g}", required=rule)
    return number


def scalar(name: str, value: float | Tensor) -> float | Tensor:
    """Returns `value`, one number. A tensor that is not 0-d is an error."""
    if isinstance(value, Tensor) and value.ndim:
        raise ParameterError(f"{name} has shape {list(value.shape)}", required="one number, or a 0-d tensor")
    return value


def discount(gamma: float | Tensor, below_one: bool = False) -> float:
    """The discount factor γ."""
    rule = "0 < gamma < 1: a discounted objective carries the factor 1/(1 - gamma)" if below_one else "0 < gamma <= 1"
    return float(number_in("gamma", scalar("gamma", gamma), rule, (0, 1), "()" if below_one else "(]"))


def radius(delta: float | Tensor) -> float:
    """A trust-region radius δ, in the units of eq:dtv_mc (mean |r - 1|)."""
    return float(number_in("delta", scalar("delta", delta), "a finite radius of at least 0", (0, float("inf")), "[)"))


def discount_weights(tokens: Tokens, states: Elements, step: Tensor, gamma: float) -> Tensor:
    """`Γ(s)/Γ` with `Γ(s)` the sum of `γ^t` over the tokens of a state (app:apc_obj_equiv_notation): float64 [S]."""
    steps = tokens.integers("step", step)
    token = first(steps < 0)
    if token is not None:
        raise HierarchyIndexError(
            f"step of {tokens.place(token)} is {int(steps[token])}",
            required="time steps t = 0, 1, ... of each token in its trajectory",
            remedy="steps(offsets) numbers packed tokens",
        )
    # Only quotients are used, so steps count from the earliest one: γ^t of a long context could underflow, to 0/0.
    powers = torch.pow(torch.tensor(gamma, dtype=torch.float64, device=steps.device), (steps - steps.min()).double())
    totals = states.total(powers)
    return totals / totals.sum()


def trajectories(offsets: Tensor) -> Tensor:
    """Returns the trajectory of every packed token: int64 [N].

    `offsets`: an integer tensor [B+1], the cumulative lengths (`cu_seqlens`) from 0. Other offsets raise
    `HierarchyIndexError`.
    """
    lengths = _lengths(offsets)
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def steps(offsets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the time step t of every packed token within its trajectory, from 0: int64 [N].

    With a mask, only unmasked tokens count, and a masked token has the number of the next unmasked token. `offsets` as
    in `trajectories`. Raises `HierarchyIndexError`.
    """
    trajectory = trajectories(offsets)
    tokens = Tokens("trajectories(offsets)", trajectory, mask)
    before = torch.cumsum(tokens.keep.long(), 0) - tokens.keep.long()
    return before - before[offsets[:-1].long().clamp(max=len(before) - 1)][trajectory]


def _lengths(offsets: Tensor) -> Tensor:
    rule = "running lengths [0, n1, n1+n2, ...] of dtype int64 or int32"
    if not isinstance(offsets, Tensor) or offsets.dtype not in INTEGERS or offsets.ndim != 1 or len(offsets) < 2:
        found = f"{offsets.dtype} {list(offsets.shape)}" if isinstance(offsets, Tensor) else type(offsets).__name__
        raise HierarchyIndexError(f"offsets: {found}", required=rule)
    lengths = offsets.long().diff()
    if int(offsets[0]) != 0 or bool((lengths < 0).any()):
        found = (
            f"they start at {int(offsets[0])}"
            if int(offsets[0]) != 0
            else f"they fall by {-int(lengths.min())} after entry {int(lengths.argmin())}"
        )
        raise HierarchyIndexError("the offsets do not delimit trajectories", required=rule, found=found)
    return lengths
