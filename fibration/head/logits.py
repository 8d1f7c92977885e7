"""From products to logits, log-probs and entropies, and back: the gradient of the products.

The logits of a chunk are worked on in blocks of rows: on a CPU a block stays in the cache, and on every device the
memory beside the logits is that of a few blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ON_CPU, ELSEWHERE = 2**19, 2**24  # logits of a block
FLOOR = -1000.0  # its exponential is 0 in every precision; 0·FLOOR is 0, where 0·(-inf) is NaN


@dataclass(frozen=True)
class Shape:
    """What turns a product `z` into a logit: `softcap·tanh((z + bias)/softcap)/temperature`."""

    bias: Tensor | None  # [V]
    softcap: float | None
    temperature: float

    def apply(self, z: Tensor) -> None:
        """In place."""
        if self.bias is not None:
            z.add_(self.bias)
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.temperature != 1:
            z.div_(self.temperature)

    def chain(self, gradient: Tensor, logits: Tensor) -> None:
        """In place, the gradient of the product from that of the logits. `logits` are used up."""
        if self.softcap is not None:
            tanh = logits.mul_(self.temperature / self.softcap)
            gradient.mul_(tanh.square_().neg_().add_(1))
        if self.temperature != 1:
            gradient.div_(self.temperature)


@dataclass(frozen=True)
class Statistics:
    """Of the distribution at each token, `[tokens]`: the largest logit, and `Σ exp(logit - largest)`.

    `log_probs`: of the targets. `entropy`: in nats, or None.
    """

    largest: Tensor
    total: Tensor
    log_probs: Tensor
    entropy: Tensor | None

    def of(self, tokens: slice) -> Statistics:
        """Views of some tokens."""
        entropy = None if self.entropy is None else self.entropy[tokens]
        return Statistics(self.largest[tokens], self.total[tokens], self.log_probs[tokens], entropy)

    def at(self, which: Tensor) -> Statistics:
        entropy = None if self.entropy is None else self.entropy[which]
        return Statistics(self.largest[which], self.total[which], self.log_probs[which], entropy)

    def offsets(self, coefficients: Tensor, bonus: float) -> Tensor:
        """`o` in the gradient of a logit, `p·(o + bonus·(logit - largest))` beside the target: `[tokens]`."""
        if not bonus:
            return coefficients
        assert self.entropy is not None
        return (self.entropy - self.total.log()).mul_(bonus).add_(coefficients)


def blocks(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    step = max((ON_CPU if device.type == "cpu" else ELSEWHERE) // columns, 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def measure(z: Tensor, targets: Tensor, shape: Shape, found: Statistics) -> None:
    """Fills `found` from the products `[n, V]`, and turns these in place into logits less the largest of each row.

    A log-prob is `(logit - largest) - log(total)`: never above 0, since `total` is at least 1.
    """
    for rows in blocks(len(z), z.shape[1], z.device):
        block, here = z[rows], found.of(rows)
        shape.apply(block)
        torch.amax(block, 1, out=here.largest)
        block.sub_(here.largest[:, None])
        probabilities = block.exp()
        torch.sum(probabilities, 1, out=here.total)
        log_total = here.total.log()
        chosen = block.gather(1, targets[rows, None]).squeeze(1)
        torch.sub(chosen, log_total, out=here.log_probs)
        if here.entropy is not None:
            probabilities.mul_(block.clamp_min(FLOOR))
            torch.sub(log_total, probabilities.sum(1).div_(here.total), out=here.entropy)


def differentiate(
    z: Tensor,
    is_measured: bool,
    which: Tensor | None,
    targets: Tensor,
    coefficients: Tensor,
    bonus: float,
    shape: Shape,
    known: Statistics,
    into: Tensor,
    of_bias: Tensor | None,
) -> Tensor:
    """The gradient of `-Σ c·log π - bonus·Σ entropy` with respect to the products: `into[:n]`, `[n, V]`.

    `z`: what `measure` left, or products if not `is_measured`. `which`: its rows that count, ascending; None: all.
    `targets`, `coefficients` and `known` are of these rows. `into` may be `z`, because row `k` of the result comes from
    row `k` or a later one. `of_bias`: the bias's gradient, to which this one's sum is added.
    """
    n = len(targets)
    for rows in blocks(n, z.shape[1], z.device):
        block = z[rows] if which is None else z.index_select(0, which[rows])
        c, stats = coefficients[rows], known.of(rows)
        if not is_measured:
            shape.apply(block)
            block.sub_(stats.largest[:, None])
        needs_logits = bool(bonus) or shape.softcap is not None
        gradient = block.exp() if needs_logits else block.exp_()
        gradient.div_(stats.total[:, None])
        offsets = stats.offsets(c, bonus)[:, None]
        gradient.mul_(block.clamp_min(FLOOR).mul_(bonus).add_(offsets) if bonus else offsets)
        gradient.scatter_add_(1, targets[rows, None], c.neg()[:, None])
        shape.chain(gradient, block.add_(stats.largest[:, None]) if shape.softcap is not None else block)
        if of_bias is not None:
            of_bias.add_(gradient.sum(0))
        if into[rows].data_ptr() != gradient.data_ptr():
            into[rows] = gradient
    return into[:n]
