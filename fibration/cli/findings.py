"""What `fibration run` prints of a gated batch: how far its parts have moved, and what every level and weight did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fibration.compiler.diagnostics import UNCHANGED, has_pulls, levels, report_of
from fibration.language.expressions import as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective
from fibration.printing.text import CHANNELS, REGIMES, Regime, shortened, unit
from fibration.rollouts.file import Rollouts
from fibration.rollouts.replay import Gated
from fibration.runtime.weights import effective

GROUPS = "prompt_group"  # labels of this name are counted
MOST = 10  # rows of a coarsest stratum per level: the elements that drift furthest at that level
LABEL = 11  # characters of a label, so that the table of regimes fits into 80
PULL = (
    " Pull: how much of the pull on the tokens is left in the means over the level's elements, for all channels "
    "together. At 0 the slopes of its gates reach no coefficient."
)


def _table(*columns: str, left: int = 1) -> Table:
    """Names on the left may wrap, numbers never do."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        side: Any = {"justify": "left", "overflow": "fold"} if i < left else {"justify": "right", "no_wrap": True}
        table.add_column(name, vertical="bottom", **side)
    return table


def _parts(g: Gated) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The tokens of every non-empty part of the rollouts, then all tokens under the name `all`."""
    for i, name in enumerate(g.parts.names):
        if (mine := g.parts.of_token == i).any():
            yield name, mine
    yield "all", np.ones(len(g.parts.of_token), bool)


def _moved(g: Gated) -> Table:
    """A table of how far the tokens of each part of the rollouts have moved. Parts need not be in the hierarchy."""
    r, h = g.rollouts, g.op.hierarchy
    changed = np.zeros(r.n_tokens, bool)
    for leaf in (s for s in h.leaves if h.gates[s].expression != as_expression(0)):
        tokens = g.index.positions_of(leaf.name).numpy()
        for channel in h.decomposition.channels:
            residual = g.levels.residual[leaf.name, channel]
            moved_by = (residual - g.levels.gated[leaf.name, channel]).abs()
            changed[tokens] |= (moved_by > UNCHANGED * residual.abs()).numpy()
    groups = r.labels.get(GROUPS) if g.parts.stratum != GROUPS else None
    counted = ["groups"] * (groups is not None) + ["traject.", "tokens"] + ["mean\nreward"] * (r.rewards is not None)
    numbers = ("mean\n|log r|", "tokens\nclipped", "𝒢(r)\nmin", "𝒢(r)\nmax")
    table = _table(g.parts.stratum, *counted, *numbers)
    drift, ratio = g.log_ratio.abs().numpy(), g.ratio.numpy()
    for name, tokens in _parts(g):
        if name == "all":
            table.add_section()
        rows = np.unique(r.rows[tokens])
        counts = [len(rows), int(tokens.sum())]
        if groups is not None:
            counts.insert(0, len(np.unique(r.of_tokens(groups.of)[tokens])))
        reward = [] if r.rewards is None else [f"{_of_rows(r, r.rewards)[rows].mean():.2f}"]
        moved, clipped = f"{drift[tokens].mean():.4f}", f"{changed[tokens].mean():.0%}"
        extremes = (f"{ratio[tokens].min():.3f}", f"{ratio[tokens].max():.3f}")
        table.add_row(name, *map(str, counts), *reward, moved, clipped, *extremes)
    return table


def _of_rows(r: Rollouts, rewards: NDArray[Any]) -> NDArray[Any]:
    """The reward of every trajectory; per-token rewards are summed."""
    return rewards if len(rewards) == r.n_trajectories else np.bincount(r.rows, rewards, r.n_trajectories)


def _weights(g: Gated, full: bool) -> Table:
    """A table of how many tokens of each part of the rollouts, or of all, are kept, and of their weights."""
    r, w = g.rollouts, g.weights
    places = g.index.positions.numpy()
    apart = {name: (r.old_log_probs - given.numpy())[places] for name, given in g.policies.items()}
    names = [f"mean\n|log π_old/π_{name}|" for name in apart]
    table = _table(g.parts.stratum, "tokens", "kept", "w\nmin", "w\nmean", "w\nmax", "effective", *names)
    for name, tokens in list(_parts(g))[0 if full else -1 :]:
        mine = tokens[places]
        if name == "all":
            table.add_section()
        kept = w.product[mine & w.kept]
        numbers = [f"{n:.3f}" for n in (kept.min(), kept.mean(), kept.max())] if len(kept) else ["·"] * 3
        share = f"{effective(kept):.0%}" if len(kept) else "·"
        moved = [f"{np.abs(x[mine]).mean():.4f}" for x in apart.values()]
        table.add_row(name, f"{mine.sum()}", _share(w.kept[mine].mean(), ""), *numbers, share, *moved)
    return table


def table_of_regimes(g: Gated, full: bool = True) -> Table:
    """A table of drift and regimes per level. `full`: split by the elements of every coarsest stratum with few of them.

    If a stratum has more than `MOST`, the table shows the elements that drift furthest at the level.
    """
    h, metrics = g.op.hierarchy, g.result.metrics
    report = report_of(h)
    regimes = _shown(g)
    titles = [r.title.replace(" ", "\n") for r in regimes.values()]
    # Metrics exist per element only for strata with few elements, and never for the batch.
    split = dict.fromkeys(b for _, b in report.paths) if full else ()
    coarsest = [over for over in split if any(f"[{over}=" in m for m in metrics)]
    heading = coarsest[0] if len(coarsest) == 1 and len(coarsest[0]) <= LABEL else "over" if coarsest else ""
    pulls = ["pull"] if has_pulls(h) else []
    table = _table("level", heading, "elem.", "mean\ndrift", "max\ndrift", *titles, *pulls, left=2)

    def row(level: str, label: Text | str, key: str, suffix: str, count: float, pull: str = "") -> None:
        shares = [_share(float(metrics[f"{key}/{k}{suffix}"]), r.style) for k, r in regimes.items()]
        drifts = [f"{float(metrics[f'{key}/{d}{suffix}']):.4f}" for d in ("drift", "drift_max")]
        if pull:
            shares.append(_share(float(metrics[pull]), ""))
        table.add_row(level, label, f"{count:.0f}", *drifts, *shares)

    for stratum, channel in levels(h):
        key, level = f"{stratum}/{channel}" if channel else stratum, f"{stratum} {CHANNELS[channel]}"
        for over in (b for b in report.over(stratum) if b in coarsest):
            if len(coarsest) > 1:
                table.add_row(level, Text(over, "italic"))
                level = ""
            counts, names = g.index.count(stratum, over), g.index.labels[over]
            far = [float(metrics[f"{key}/drift[{over}={name}]"]) for name in names]
            shown = list(range(len(names)))
            if len(names) > MOST:
                shown = sorted(sorted(shown, key=lambda i: -far[i] if far[i] == far[i] else 0.0)[: MOST - 1])
            for i in shown:
                row(level, shortened(str(names[i]), LABEL), key, f"[{over}={names[i]}]", float(counts[i]))
                level = ""
            if len(names) > MOST:
                table.add_row("", Text(f"{len(names) - len(shown)} others", "dim"))
        pull = f"{stratum}/pull" if pulls and channel == h.decomposition.channels[0] else ""
        row(level, "all" if coarsest else "", key, "", float(g.index.size[stratum]), pull)
        table.add_section()
    return table


def _share(value: float, style: str) -> Text:
    if not value > 0:  # nan, where there is nothing to share
        return Text("·", "dim")
    return Text("<1%" if value < 0.005 else f"{value:.0%}" if value == 1 or value < 0.995 else ">99%", style)


def findings(g: Gated, full: bool = True) -> Iterator[Any]:
    """The tables, each after a line that explains its columns, then the numbers of the whole batch.

    `full`: every level split by labels, and all numbers. Without it they fit on a screen.
    """
    h, m = g.op.hierarchy, g.result.metrics
    split = len(h.decomposition.channels) > 1
    of_channels = " A token that became likelier has density 0 in channel −, any other token in channel +."
    channels = of_channels if split else ""
    meanings = "; ".join(f"{r.title}: {r.meaning}" for r in _shown(g).values())
    coarser = "the mean of its coarser element" if h.shape.is_tree else "the part that its coarser elements explain"
    yield Text(
        f"What every gate did. Drift: the absolute residual of an element, which is its mean {_coordinate(h)} minus "
        f"{coarser}.{channels} Shares of elements by regime. {meanings}.{PULL if has_pulls(h) else ''}",
        "italic",
    )
    yield table_of_regimes(g, full)
    yield Text(
        f"How far {f'each {g.parts.stratum}' if g.parts.stratum else 'the batch'} has moved since it was sampled. "
        "r: the ratio π_new/π_old of a token. 𝒢(r): the gated ratio, which training uses instead of r. "
        f"clipped: the share of tokens that {'the gate on ' if len(h.leaves) == 1 else 'the gates on '}"
        f"{' and '.join(map(str, h.leaves))} changed.",
        "italic",
    )
    yield _moved(g)
    o = h.objective
    if o.formulas:
        yield Text(
            "The weights of tokens. kept: the share of tokens that meet every condition. w: the product of a kept "
            "token's weights. effective: (Σw)²/(n·Σw²), the share of n kept tokens that the weighted mean is worth.",
            "italic",
        )
        yield _weights(g, full)
    ratio = torch.exp(g.log_ratio)
    changed = float((g.ratio - ratio).abs().gt(1e-12 * ratio).double().mean())
    product = "w·" * bool(o.formulas) + ("stop(𝒢(r))·A·log π" if o.estimator == "score" else "𝒢(r)·A")
    less = " less penalties" * bool(h.penalties)
    gated = f"{float(m['gated_ratio/min']):.3f} … {float(m['gated_ratio/max']):.3f}"
    grid = Table.grid(padding=(0, 2, 0, 0))
    a, objective = g.advantages, "·" if g.advantages is None else f"{float(g.result.objective):+.6f}"
    unknown = "not recorded, so the objective is not known"
    for name, value, meaning in (
        ("objective J", objective, f"Σ μ·{product}{less}, with μ of {_mean(o)}"),
        *([("advantages", "·", unknown)] if a is None else []),
        *(
            ("advantages", f"{float(a.min()):+.3f} … {float(a.max()):+.3f}", str(formula))
            for formula in (h.advantages,)
            if formula is not None and a is not None
        ),
        *((f"penalty {name}", f"{float(m[f'penalty/{name}']):.6f}", str(p)) for name, p in h.penalties.items()),
        ("ratio r", f"{float(ratio.min()):.3f} … {float(ratio.max()):.3f}", "π_new/π_old, before gates"),
        ("gated ratio 𝒢(r)", gated, f"differs from r on {changed:.0%} of the tokens"),
        ("", "", ""),
        *(("weight", "", str(formula)) for formula in o.weighed),
        *(("kept", "", f"{k.condition}; μ counts {k.normaliser} tokens") for k in o.kept),
        ("TV estimate", f"{float(m['tv']):.5f}", "mean over trajectories of mean |r − 1|"),
        ("KL estimate", f"{float(m['kl']):.5f}", "mean over trajectories of mean −log r, in nats"),
        *(
            (
                f"to {name}",
                f"{float(m[f'{name}/kl']):.5f}",
                f"mean over tokens of exp(d) − 1 − d, d = log π_old − log π_{name}",
            )
            for name in g.policies
        ),
    ):
        if not (name or full):
            break
        grid.add_row(Text(name, "bold"), value, Text(meaning, "dim"))
    yield Padding(grid, (1, 0, 0, 0))


def _mean(objective: Objective) -> str:
    """The objective as written, without its `weigh` and `keep`."""
    return re.split(r"[.](?:weigh|keep)[(]", objective.written)[0]


def _coordinate(h: Hierarchy) -> str:
    return {"nats": "log ratio (nats)", "r − 1": "r − 1"}.get(unit(h), "density")


def _shown(g: Gated) -> dict[str, Regime]:
    """The regimes that occur, and `passed`."""
    occur = {key.split("[")[0].rpartition("/")[2] for key, value in g.result.metrics.items() if float(value) > 0}
    return {k: r for k, r in REGIMES.items() if k in {"passed", *occur}}
