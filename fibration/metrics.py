"""Diagnostics that reduce exactly over ranks: sums with their counts, and extremes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fibration.index import Index
from fibration.instrument import REGIMES
from fibration.lower import CHANNEL_WORD
from fibration.spec import Hierarchy

FEW = 32  # a root stratum with more elements than this is reported as a whole only


@dataclass(frozen=True)
class Mean:
    """A sum and a count, both 0-d float64 tensors; reads as their quotient, and adds up over ranks with `+`."""

    sum: Tensor
    count: Tensor

    def __float__(self) -> float:
        return float(self.sum) / float(self.count) if float(self.count) else float("nan")

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    def __repr__(self) -> str:
        return f"{float(self):.6g}"


@dataclass(frozen=True)
class Extreme:
    """A maximum or a minimum, a 0-d float64 tensor; `+` keeps the more extreme of two."""

    value: Tensor
    largest: bool

    def __float__(self) -> float:
        return float(self.value)

    def __add__(self, other: Extreme) -> Extreme:
        pick = torch.maximum if self.largest else torch.minimum
        return Extreme(pick(self.value, other.value), self.largest)

    def __repr__(self) -> str:
        return f"{float(self):.6g}"


Metric = Mean | Extreme


def levels(hierarchy: Hierarchy) -> Iterator[tuple[str, str]]:
    """(stratum, channel) for every gate, root first."""
    for stratum in hierarchy.chain:
        for channel in hierarchy.decomposition.channels:
            yield stratum.name, channel


def collect(hierarchy: Hierarchy, outputs: Mapping[str, Tensor], index: Index) -> dict[str, Metric]:
    """Name the metric outputs of a program.

    `{stratum}/{channel}/{regime}` is the share of elements in a regime, `.../drift` and `.../drift_max` the absolute
    residual in intensive units (nats per token for log ratios); one channel has no `/{channel}`. With few elements in
    the root stratum each also comes as `...[root=label]`. `token/clipped` is the share of tokens that any channel's
    gate changed, `ratio/min` and `ratio/max` the range of the gated ratio, `tv` and `kl` the means over trajectories
    of eq:dhat_traj and eq:dhat_kl_traj.
    """
    root = hierarchy.chain[0].name
    over = "batch" if root == hierarchy.leaf.name else root  # as in `fibration.instrument`
    names = index.labels.get(root, ())
    named = list(enumerate(names)) if 1 < len(names) <= FEW else []
    result: dict[str, Metric] = {}

    def at_root(name: str) -> Tensor:  # a constant of the program comes as a single number
        return outputs[name].to(index.device).expand(index.size[over])

    def share(key: str, sums: Tensor, counts: Tensor) -> None:
        result[key] = Mean(sums.sum(), counts.sum())
        for i, label in named:
            result[f"{key}[{root}={label}]"] = Mean(sums[i], counts[i])

    for stratum, channel in levels(hierarchy):
        key = f"{stratum}/{channel}" if channel else stratum
        word = stratum + CHANNEL_WORD[channel]
        counts = index.count(stratum, over)
        for regime in REGIMES:
            share(f"{key}/{regime}", at_root(f"{regime}_{word}"), counts)
        share(f"{key}/drift", at_root(f"drift_{word}"), counts)
        peaks = at_root(f"peak_{word}")
        result[f"{key}/drift_max"] = Extreme(peaks.max(), True)
        for i, label in named:
            result[f"{key}/drift_max[{root}={label}]"] = Extreme(peaks[i], True)
    share(f"{hierarchy.leaf.name}/clipped", at_root("clipped"), index.count(hierarchy.leaf.name, over))
    result["ratio/max"] = Extreme(outputs["ratio_max"].max(), True)
    result["ratio/min"] = Extreme(-outputs["ratio_min_negated"].max(), False)
    rows = index.count(hierarchy.rows.name, "batch").sum()
    result["tv"] = Mean(outputs["tv"].sum(), rows)
    result["kl"] = Mean(outputs["kl"].sum(), rows)
    return result
