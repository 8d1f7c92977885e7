"""Diagnostics that add up exactly over batches: sums with their counts, and extremes."""

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
    """A sum and a count, both 0-d float64 tensors; reads as their quotient, and adds up over batches with `+`."""

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
    and eq:dhat_kl_traj. `kept` is the share of tokens that are kept; of these `weight/mean`, `weight/mean_square` and
    `weight/max` (of several weights `weight_1/mean`, ...); of every further policy `{policy}/log_ratio`, the mean over
    tokens of `log π_old - log π`, and `{policy}/kl`, that of `exp(d) - 1 - d` of it: an estimate of their divergence,
    where it is the policy that sampled. `penalty/{name}` is what a penalty takes off the objective: batches that are
    added up count by their rows, or by the elements that it is read over.
    """
    report = report_of(hierarchy)
    values: dict[str, Tensor] = {}  # 0-d
    counts: dict[str, Tensor] = {}  # 0-d, of means
    whole: dict[tuple[str, bool], dict[str, Tensor]] = {}  # added up, or the largest of, over a stratum

    def named(over: str) -> list[tuple[int, Hashable]]:
        names = () if over == hierarchy.rows.name else index.labels.get(over, ())  # rows differ from batch to batch
        return list(enumerate(names)) if 1 < len(names) <= FEW else []

    def share(key: str, word: str, stratum: str, channel: str) -> None:
        largest = word == "peak"
        for i, over in enumerate(report.over(stratum)):
            # a constant comes as a single number
            found = outputs[report.key(word, stratum, channel, over)].expand(index.size[over])
            here = {f"{key}[{over}={label}]": k for k, label in named(over)}
            values.update({name: found[k] for name, k in here.items()})
            if not largest:
                counts.update({name: index.count(stratum, over)[k] for name, k in here.items()})
            if i == 0:  # each of them adds up to the same
                whole.setdefault((over, largest), {})[key] = found
                if not largest:
                    counts[key] = index.count(stratum, BATCH)[0]

    for stratum, channel in levels(hierarchy):
        key = f"{stratum}/{channel}" if channel else stratum
        for regime in (*REGIMES, "drift"):
            share(f"{key}/{regime}", regime, stratum, channel)
        share(f"{key}/drift_max", "peak", stratum, channel)
    for leaf in (s.name for s in hierarchy.leaves):
        share(f"{leaf}/clipped", "clipped", leaf, "")
    leaves = tuple(s.name for s in hierarchy.leaves)

    def most(word: str) -> Tensor:
        return torch.stack([outputs[part(word, leaf, leaves)][0] for leaf in leaves]).max()

    for (_, largest), found in whole.items():  # all at once: a device takes as long for a hundred numbers as for one
        stacked = torch.stack(list(found.values()))
        values.update(zip(found, stacked.amax(1) if largest else stacked.sum(1), strict=True))
    values["ratio/max"], values["ratio/min"] = most("ratio_max"), -most("ratio_min_negated")
    for word in ("tv", "kl"):
        values[word], counts[word] = outputs[Key(word)][0], index.count(hierarchy.rows.name, BATCH)[0]
    tokens = torch.stack([index.count(leaf, BATCH)[0] for leaf in leaves]).sum()
    kept = outputs[Key("kept")][0] if hierarchy.objective.kept else tokens
    if hierarchy.objective.kept:
        values["kept"], counts["kept"] = kept, tokens
    for i in range(1, len(hierarchy.objective.weighed) + 1):
        word, name = f"weight_{i}", f"weight_{i}" if len(hierarchy.objective.weighed) > 1 else "weight"
        values[f"{name}/mean"], counts[f"{name}/mean"] = outputs[Key(word)][0], kept
        values[f"{name}/mean_square"], counts[f"{name}/mean_square"] = outputs[Key(f"{word}_square")][0], kept
        values[f"{name}/max"] = most(f"{word}_max")
    for name, penalty in hierarchy.penalties.items():
        read_at = (hierarchy.rows if penalty.over is None else penalty.over).name
        number = index.count(read_at, BATCH)[0]
        values[f"penalty/{name}"], counts[f"penalty/{name}"] = outputs[Key("penalty", name)][0] * number, number
    for name in (p.name for p in hierarchy.policies.values() if p.is_passed):
        if Key(f"{name}_log_ratio") not in outputs:  # advantages alone read it, in a program of their own
            continue
        for word in ("log_ratio", "kl"):
            values[f"{name}/{word}"], counts[f"{name}/{word}"] = outputs[Key(f"{name}_{word}")][0], tokens
    # of their own: who adds them up in place over ranks must not change what the index knows
    own = dict(zip(values, torch.stack(list(values.values())), strict=True))
    count = dict(zip(counts, torch.stack(list(counts.values())), strict=True))
    return {k: Mean(v, count[k]) if k in count else Extreme(v, k != "ratio/min") for k, v in own.items()}
