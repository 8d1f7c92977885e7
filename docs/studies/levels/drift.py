"""Whether the log ratios of an answer's tokens move together."""

import torch
from torch import Tensor


def correlation(x: Tensor, mask: Tensor) -> dict[str, float]:
    """The intraclass correlation of log ratios within an answer, by analysis of variance, and the design effect."""
    n = mask.sum(1).double()
    x = torch.where(mask, x, 0.0).double()
    rows, tokens = len(n), n.sum()
    means = x.sum(1) / n
    within = (torch.where(mask, (x - means[:, None]) ** 2, 0.0)).sum() / (tokens - rows)
    between = (n * (means - x.sum() / tokens) ** 2).sum() / (rows - 1)
    size = (tokens - (n**2).sum() / tokens) / (rows - 1)
    icc = (between - within) / (between + (size - 1) * within)
    mean_length = float(tokens / rows)
    return {"icc": float(icc), "length": mean_length, "design_effect": 1 + (mean_length - 1) * float(icc)}
