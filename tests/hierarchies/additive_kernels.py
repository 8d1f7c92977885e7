"""Kernels of chains that are quotients of additive measures."""

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    MarkovKernel,
    count,
    identity_gate,
    log_ratio,
    token_mean,
    total,
)
from hierarchies.builders import FULL as CHAIN
from hierarchies.builders import token, trajectory, weight

price = Attribute("price", on=trajectory)


def right_kernels(source, target):
    """Weights that sum to 1 over every fibre, as quotients of additive measures."""
    made = [1 / count(source, over=target)]
    for finer in CHAIN[: CHAIN.index(source)]:
        made.append(count(finer, over=source) / count(finer, over=target))
    made.append(total(weight, over=source) / total(weight, over=target))
    if source == token:
        made[-1] = weight / total(weight, over=target)
    if CHAIN.index(source) >= CHAIN.index(trajectory):
        own = price if source == trajectory else total(price, over=source)
        made.append(own / total(price, over=target))
    return made


def over(levels, kernels):
    return Hierarchy(
        name="random",
        fibrations=[
            Fibration(a, b, kernel=MarkovKernel(k)) for a, b, k in zip(levels, levels[1:], kernels, strict=False)
        ],
        gates=dict.fromkeys(levels, identity_gate()),
        decomposition=log_ratio(),
        objective=token_mean(),
    )
