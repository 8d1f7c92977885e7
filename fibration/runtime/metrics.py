"""Diagnostics that reduce exactly over ranks: sums with their counts, and extremes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fibration.compiler.diagnostics import REGIMES, levels, report_of
from fibration.compiler.ir import part
from fibration.compiler.keys import Key
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.index.index import Index

FEW = 32  # a coarsest stratum with more elements than this is reported as a whole only


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


def collect(hierarchy: Hierarchy, outputs: Mapping[Key, Tensor], index: Index) -> dict[str, Metric]:
    """Name the metric outputs of a program.

    `{stratum}/{channel}/{regime}` is the share of elements in a regime, `.../drift` and `.../drift_max` the absolute
    residual in intensive units (nats per token for log ratios); one channel has no `/{channel}`. Each also comes per
    element of the coarsest strata, `...[domain=math]`, where these are few and not the rows; of an element with nothing
    over it means are NaN and maxima -inf. `{leaf}/clipped` is the share of tokens that any channel's gate changed,
    `ratio/min` and `ratio/max` the range of the gated ratio, `tv` and `kl` the means over trajectories of eq:dhat_traj
    and eq:dhat_kl_traj.
    """
    report = report_of(hierarchy)
    result: dict[str, Metric] = {}

    def named(over: str) -> list[tuple[int, Hashable]]:
        names = () if over == hierarchy.rows.name else index.labels.get(over, ())  # rows differ from batch to batch
        return list(enumerate(names)) if 1 < len(names) <= FEW else []

    def at(word: str, stratum: str, channel: str, over: str) -> Tensor:  # a constant comes as a single number
        return outputs[report.key(word, stratum, channel, over)].to(index.device).expand(index.size[over])

    def share(key: str, word: str, stratum: str, channel: str) -> None:
        for i, over in enumerate(report.over(stratum)):
            sums, counts = at(word, stratum, channel, over), index.count(stratum, over)
            if i == 0:  # each of them adds up to the same
                result[key] = Mean(sums.sum(), counts.sum())
            result.update({f"{key}[{over}={label}]": Mean(sums[k], counts[k]) for k, label in named(over)})

    for stratum, channel in levels(hierarchy):
        key = f"{stratum}/{channel}" if channel else stratum
        for regime in REGIMES:
            share(f"{key}/{regime}", regime, stratum, channel)
        share(f"{key}/drift", "drift", stratum, channel)
        for i, over in enumerate(report.over(stratum)):
            peaks = at("peak", stratum, channel, over)
            if i == 0:
                result[f"{key}/drift_max"] = Extreme(peaks.max(), True)
            for k, label in named(over):
                result[f"{key}/drift_max[{over}={label}]"] = Extreme(peaks[k], True)
    for leaf in (s.name for s in hierarchy.leaves):
        share(f"{leaf}/clipped", "clipped", leaf, "")
    leaves = tuple(s.name for s in hierarchy.leaves)

    def most(word: str) -> Tensor:
        return torch.stack([outputs[part(word, leaf, leaves)].max() for leaf in leaves]).max()

    result["ratio/max"] = Extreme(most("ratio_max"), True)
    result["ratio/min"] = Extreme(-most("ratio_min_negated"), False)
    rows = index.count(hierarchy.rows.name, BATCH).sum()
    result["tv"] = Mean(outputs[Key("tv")].sum(), rows)
    result["kl"] = Mean(outputs[Key("kl")].sum(), rows)
    return result
