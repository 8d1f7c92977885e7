"""Figure `objective` (fig:fiberpo_objective): a loss while ratios drift as `r_i = 1 + t·Δ_i`.

Every token drifts in the direction of its advantage, `sign(Δ_i) = sign(A_i)`, at its own pace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fibration.compiler.diagnostics import REGIMES as NAMES
from fibration.language.loading import load
from fibration.pipeline import compile as compile_operator
from fibration.plotting.canvas import INK, LEGEND, PALETTE, Vector, panel, plate, sheet, title
from fibration.plotting.figures.gates import reach
from fibration.plotting.figures.joint import CHANNEL_COLOUR, plane
from fibration.plotting.figures.sample import OLD, Sample, dealing, sample
from fibration.plotting.gate_curve import bisect, reads_pull, removes, sections
from fibration.printing.text import CHANNELS, unit
from fibration.runtime.operator import Operator

TOKENS = 10
LONGEST = 1.4  # of t, so that every ratio stays positive
DELTA = np.array([0.45, 0.35, 0.25, 0.15, 0.1, -0.25, -0.2, -0.15, -0.1, -0.05])
ADVANTAGE = np.sign(DELTA)
SHOWN = (0, 5)  # the two tokens of panel (c): the fastest of each sign
SEARCH = np.concatenate([[0.0], np.geomspace(1e-6, LONGEST, 400)])
BASELINE = "grpo"
TOKEN_CHANGES = "the regime of a token changes"
CLIPS: Mapping[str, tuple[str, ...]] = {
    "epsilon_low": ("epsilon_low", "epsilon"),
    "epsilon_high": ("epsilon_high", "epsilon"),
}


@dataclass(frozen=True)
class Event:
    """The drift `t` at which a gate's regime changes at one element. A token changes in its own sign channel."""

    t: float
    stratum: str
    channel: str
    element: int
    before: str
    after: str


@dataclass(frozen=True)
class Drift:
    """One loss along the drift. If a gate or a penalty above the tokens reads the advantage, each sign has its own
    trajectory.
    """

    op: Operator
    parameters: Mapping[str, Any]

    @cached_property
    def rows(self) -> int:
        read = self.op.programs["evaluate"]
        return 2 if any(i.kind == "advantage" and i.over not in read.leaves for i in read.inputs) else 1

    @cached_property
    def is_score(self) -> bool:
        return self.op.hierarchy.objective.estimator == "score"

    @cached_property
    def start(self) -> Sample:
        return sample(self.op, np.zeros((1, TOKENS)), ADVANTAGE, self.parameters, self.rows)

    def at(self, t: Any) -> Sample:
        """Worlds at these drifts, in order."""
        grid = np.atleast_1d(np.asarray(t, np.float64))
        if (key := grid.tobytes()) not in self._known:
            log_ratio = np.log1p(grid[:, None] * DELTA)
            self._known[key] = sample(self.op, log_ratio, ADVANTAGE, self.parameters, self.rows)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[bytes, Sample]:
        return {}

    def _alone(self, t: Vector) -> Sample:
        """One batch per drift: a batch of several has one `J`."""
        return replace(self.start, log_ratio=np.log1p(t[:, None] * DELTA), alone=True)

    def total(self, t: Vector) -> Vector:
        """`J` at every drift, with one batch per drift: `[len(t)]`."""
        return self._alone(t).objective

    @cached_property
    def counts_kept(self) -> bool:
        """Whether `μ` counts the kept tokens, and so depends on the drift and the row."""
        return any(k.normaliser == "kept" for k in self.op.hierarchy.objective.kept)

    def per_token(self, t: Any) -> Vector:
        """`μ·w_i·𝒢_i·A_i`, times `log π` for a score estimator: `[len(t), tokens]`.

        Sums over tokens are `total` without penalties. The factor `μ` is left out if it counts the kept tokens.
        """
        return (1.0 if self.counts_kept else self.weight) * self._unweighted(t)

    def _unweighted(self, t: Any) -> Vector:
        seen = self.at(t)
        value = seen.ratio * ADVANTAGE * seen.weight
        return value * (math.log(OLD) + seen.log_ratio) if self.is_score else value

    @cached_property
    def weight(self) -> float:
        """`μ`, equal for rows of equal length: `J` without penalties over `Σ w 𝒢 A`, where that sum is largest."""
        t = np.linspace(0, LONGEST, 13)
        sums = self._unweighted(t).sum(axis=1)
        best = int(np.argmax(np.abs(sums)))
        batch = self._alone(t[best : best + 1])
        return float((batch.objective + batch.penalties)[0] / sums[best])

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Every change of a regime for t up to `LONGEST`, in order.

        Regimes are those of the metrics: a gate passes while it changes its residual by less than 1e-6 of it. A token
        of a leaf in `by_ratio` passes while its ratio is unchanged.
        """
        keys, found = self._codes(SEARCH)
        where, which = np.nonzero(found[1:] != found[:-1])
        before, after, each = found[where, which], found[where + 1, which], np.arange(len(which))
        stays = lambda middle: self._codes(middle)[1][each, which] == before  # noqa: E731
        _, high = bisect(SEARCH[where], SEARCH[where + 1], stays)
        names = zip(high.tolist(), which, before, after, strict=True)
        events = [Event(t, *keys[k], NAMES[a], NAMES[b]) for t, k, a, b in names]
        return tuple(sorted((e for e in events if e.t > SEARCH[1]), key=lambda e: (e.t, e.stratum, e.element)))

    @cached_property
    def longest(self) -> float:
        """The largest `t` of the axes: a little past the last event."""
        return min(LONGEST, 1.25 * self.events[-1].t) if self.events else LONGEST

    @cached_property
    def by_ratio(self) -> tuple[str, ...]:
        return self.at(SEARCH[1]).by_ratio

    def _codes(self, t: Vector) -> tuple[list[tuple[str, str, int]], NDArray[np.int64]]:
        """(stratum, channel, element) keys, and regimes `[len(t), keys]`; by ratios for leaves in `by_ratio`."""
        seen, h = self.at(t), self.op.hierarchy
        channels = h.decomposition.channels
        keys, columns = [], []
        for stratum in h.order:
            if stratum in h.leaves:  # a token keeps its sign along the drift
                keys += [(stratum.name, channels[seen.own[-1, i]], int(i)) for i in seen.tokens_of(stratum)]
                columns.append(seen.token_regimes(stratum, stratum.name in self.by_ratio))
            else:
                for c in channels:
                    columns.append(seen.regimes[stratum.name, c])
                    keys += [(stratum.name, c, i) for i in range(columns[-1].shape[1])]
        return keys, np.concatenate(columns, axis=1)


def baseline(op: Operator, parameters: Mapping[str, Any]) -> Drift | None:
    """GRPO with the clip of this hierarchy, or with GRPO's default if the hierarchy has none.

    None for GRPO itself, for a `μ` that counts the kept tokens, and for a score estimator: its value is not the true
    objective, so a comparison would mislead.
    """
    compared = op.hierarchy.objective.estimator == "ratio" and not Drift(op, parameters).counts_kept
    if op.hierarchy.name == BASELINE or not compared:
        return None
    own = {name: parameters.get(name, p.default) for name, p in op.hierarchy.parameters.items()}
    grpo = compile_operator(load(BASELINE), "torch")
    given = {}
    for name, sources in CLIPS.items():
        value = next((own[s] for s in sources if isinstance(own.get(s), (int, float))), None)
        upper = grpo.hierarchy.parameters[name].upper
        if value is not None and (upper is None or value < upper):
            given[name] = value
    return Drift(grpo, given)


def figure(op: Operator, parameters: Mapping[str, Any], note: str) -> Figure:
    """The picture of one hierarchy. `note` stands under the title."""
    h, drift, other = op.hierarchy, Drift(op, parameters), baseline(op, parameters)
    margins = {"left": 1.17, "right": 0.26, "top": 1.35, "bottom": 1.35, "hspace": 0.32, "wspace": 0.32}
    page, grid = sheet(13.0, 11.2, (2, 2), **margins)
    two = grid[1, 0].subgridspec(2, 1, hspace=0.12)
    axes = [page.add_subplot(cell) for cell in (grid[0, 0], grid[0, 1], two[0], two[1], grid[1, 1])]
    t = np.unique([*np.linspace(0, drift.longest, 481), *(e.t for e in drift.events if e.t < drift.longest)])
    _first(axes[0], drift, t)
    _stacked(axes[1], drift)
    _pair(axes[2], axes[3], drift, other, t)
    _total(axes[4], drift, other, t)
    for one in axes[2:]:
        _markers(one, drift)
    leaves = [s.name for s in h.leaves]
    handles: list[Any] = []
    if any(e.stratum in leaves for e in drift.events):
        label = f"the regime of a token ({', '.join(leaves)}) changes" if leaves != ["token"] else TOKEN_CHANGES
        label += ", from the first change of its ratio on" if drift.by_ratio else ""
        handles.append(Line2D([], [], color=INK, linewidth=0.8, alpha=0.6, label=label))
    for channel, stratum in {(e.channel, e.stratum): 0 for e in drift.events if e.stratum not in leaves}:
        name = f"{stratum} {CHANNELS[channel]}".strip()
        again = any(e.before != "passed" for e in drift.events if (e.channel, e.stratum) == (channel, stratum))
        words = f"{name} leaves its budget" + (" (dotted: its regime changes again)" if again else "")
        handles.append(Line2D([], [], color=CHANNEL_COLOUR[channel], label=words))
    if other is not None:
        look: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2}
        handles.append(Line2D([], [], **look, label=_baseline_label(drift, other)))
    page.legend(handles=handles, **{**LEGEND, "loc": "lower left"}, bbox_to_anchor=(0.03, 0.01), ncols=2)
    split = "; each sign of A is a trajectory of its own" if drift.rows > 1 else ""
    old = f";  score estimator, π_old = {OLD:g} for every token" if drift.is_score else ""
    above = ";  ".join(filter(None, (f"{TOKENS} tokens", dealing(h), note)))
    below = f"{above}\nΔ = {', '.join(f'{d:g}' for d in DELTA)};  A = sign(Δ){split}{old}".replace("-", "−")
    title(page, f"{h.name}: objective while ratios drift as r = 1 + t·Δ", 0.03, 0.18, below)
    return page


def weigh(drift: Drift, other: Drift) -> float:
    """The factor that makes another loss comparable: the quotient of the token weights `μ`, 1 if they are equal."""
    quotient = drift.weight / other.weight
    return 1.0 if abs(quotient - 1) < 1e-9 else quotient


def _baseline_label(drift: Drift, other: Drift) -> str:
    parameters = other.op.hierarchy.parameters
    ends = [f"{sign} {other.parameters.get(n, parameters[n].default):g}" for n, sign in zip(CLIPS, "−+", strict=True)]
    own = [n in other.parameters for n in CLIPS]
    if any(own):
        ends = [end if mine else f"{end} (its default)" for end, mine in zip(ends, own, strict=True)]
    scaled = "" if weigh(drift, other) == 1 else f", with the token weight μ of {drift.op.hierarchy.name}"
    return f"GRPO, clipped {'' if any(own) else 'at its default '}to [1 {ends[0]}, 1 {ends[1]}]{scaled}"


def _first(axes: Axes, drift: Drift, t: Vector) -> None:
    """(a): the root's path over both channels' drifts; its drift for one channel; gated ratios for tokens alone."""
    h = drift.op.hierarchy
    channels, root = h.decomposition.channels, h.roots[0].name
    seen, end = drift.at(t), (0, drift.longest)
    if len(h.strata) == 1 or removes(drift.op, root):
        for i, values in enumerate(seen.ratio.T):
            axes.plot(t, values, color=PALETTE[0] if ADVANTAGE[i] > 0 else PALETTE[4], linewidth=1.2)
        lines = [Line2D([], [], color=PALETTE[k], label=f"A {s} 0") for k, s in ((0, ">"), (4, "<"))]
        axes.legend(handles=lines, fontsize=9)
        every = "token" if len(h.leaves) > 1 else h.leaves[0]
        panel(axes, f"(a) gated ratio of every {every}", xlabel="t", ylabel="gated ratio", xlim=end)
        return
    if len(channels) == 1 or reads_pull(drift.op, root):  # else one plane is the gate of all trajectories
        for channel in channels:
            before, after = seen.residual[root, channel], seen.gated[root, channel]
            for i in np.flatnonzero(np.abs(before).max(axis=0) > 0).tolist():
                colour = PALETTE[(0, 4)[i % 2]]
                sign = {1: "A > 0", -1: "A < 0"}[int(ADVANTAGE[i * TOKENS // drift.rows])] if drift.rows > 1 else root
                name = f"{sign}, channel {CHANNELS[channel]}" if channel else sign
                axes.plot(t, before[:, i], ":", color=colour, label=f"{name}: drift")
                axes.plot(t, after[:, i], color=colour, label=f"{name}: gated")
        axes.legend(fontsize=9)
        words = f"(a) drift of the {root}, and what its gate leaves"
        panel(axes, words, xlabel="t", ylabel=f"drift ({unit(h)})", xlim=end)
        return
    found = [sections(drift.start.batches[0], root, c, advantages=(1.0,))[0] for c in channels]
    path = [seen.residual[root, c] for c in channels]
    reaches = [reach([s]) / 1.35 if s.breaks else 0.0 for s in found]
    far = [1.06 * max(r, float(p.max())) for r, p in zip(reaches, path, strict=True)]
    low = 0.0 if min(float(p.min()) for p in path) >= 0 else -1.0
    mesh = plane(axes, found[0], found[1], low, (far[0], far[1]), at=(0.2, 0.8))
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "bbox": plate(0.6, 0.8)}
    for x, y in zip(path[0].T, path[1].T, strict=True):
        axes.plot(x, y, color="black", linewidth=1.8)
        for mark in np.arange(1, 8) * drift.longest / 7:
            i = int(np.argmin(np.abs(t - mark)))
            axes.plot(x[i], y[i], "o", color="black", markersize=4)
            last = x[i] > 0.85 * far[0]
            place: dict[str, Any] = {"xytext": (-7, 5) if last else (6, -11), "ha": "right" if last else "left"}
            axes.annotate(f"t = {t[i]:.2g}", (x[i], y[i]), **place, **look)
    axes.set(xlabel=f"drift of {root}, channel + ({unit(h)})", ylabel=f"channel − ({unit(h)})")
    axes.set_title("(a) the path over the sum of the channels, g(s⁺) − g(s⁻)", fontsize=11, loc="left")
    bar = axes.figure.colorbar(mesh, cax=axes.inset_axes((1.015, 0, 0.025, 1)))
    bar.ax.tick_params(labelsize=8)


def _stacked(axes: Axes, drift: Drift) -> None:
    """(b): what every level adds to every token, at the last of ten drifts up to t = 1 that leaves something."""
    h = drift.op.hierarchy
    last = min(1.0, drift.longest)
    for now in last * np.linspace(1, 0.1, 10):  # before everything is zeroed
        seen = drift.at(now)
        if any(np.abs(g).max() > 0 for g in seen.gated.values()):
            break
    above, below, place = np.zeros(TOKENS), np.zeros(TOKENS), np.arange(TOKENS)
    sign = {"": 1.0, "+": 1.0, "-": -1.0}
    for k, stratum in enumerate(h.order):
        parts = [sign[c] * seen.gated[stratum.name, c][0] for c in h.decomposition.channels]
        value = np.zeros(TOKENS)
        value[seen.tokens_over(stratum)] = np.sum(parts, axis=0)[seen.element(stratum)]
        bottom = np.where(value >= 0, above, below)
        axes.bar(place, value, 0.7, bottom=bottom, color=PALETTE[k % len(PALETTE)], label=f"from {stratum}", alpha=0.85)
        above, below = above + np.maximum(value, 0), below + np.minimum(value, 0)
    known = {"nats": ("log", seen.log_ratio[0], np.log(seen.ratio[0]))}
    known["r − 1"] = ("", np.expm1(seen.log_ratio[0]), seen.ratio[0] - 1)
    if unit(h) in known:
        log, before, after = known[unit(h)]
        word = "log {}" if log else "{} − 1"
        axes.plot(place, after, "D", color="black", markersize=4.5, label=word.format(r"$\mathcal{G}$"))
        axes.plot(place, before, "_", color="black", markersize=13, label=word.format("r"))
    axes.axhline(0, color="grey", linewidth=0.6)
    axes.set_xticks(place, [f"{d:g}".replace("-", "−") for d in DELTA])
    words = f"(b) what every level adds at t = {now:.3g}"
    panel(axes, words, grid="y", xlabel="token, by its Δ", ylabel=f"gated drift ({unit(h)})")
    axes.legend(fontsize=9, loc="upper right")


def _pair(upper: Axes, lower: Axes, drift: Drift, other: Drift | None, t: Vector) -> None:
    """(c): the fastest token of each sign."""
    for axes, i, colour in zip((upper, lower), SHOWN, (PALETTE[0], PALETTE[4]), strict=True):
        sign, delta = ">" if ADVANTAGE[i] > 0 else "<", f"{DELTA[i]:g}".replace("-", "−")
        axes.plot(t, drift.per_token(t)[:, i], color=colour, linewidth=1.8, label=f"Δ = {delta}, A {sign} 0", zorder=3)
        if other is not None:
            axes.plot(t, weigh(drift, other) * other.per_token(t)[:, i], "--", color="black", linewidth=1.2, zorder=4)
        axes.ticklabel_format(useOffset=False)
        factors = [] if drift.counts_kept else [r"\mu"]
        factors += ["w"] if drift.op.hierarchy.objective.formulas else []
        factors += [r"\mathrm{stop}(\mathcal{G})", "A", r"\log\pi"] if drift.is_score else [r"\mathcal{G}", "A"]
        panel(axes, xlim=(0, drift.longest), ylabel="$" + r"\,".join(factors) + "$")
        axes.legend(fontsize=9, loc="best")
    upper.tick_params(labelbottom=False)
    upper.set_title("(c) objective of two tokens", fontsize=11, loc="left")
    lower.set_xlabel("t")


def _total(axes: Axes, drift: Drift, other: Drift | None, t: Vector) -> None:
    """(d): `J`."""
    axes.plot(t, drift.total(t), color=PALETTE[2], linewidth=2, label=drift.op.hierarchy.name, zorder=3)
    if other is not None:
        axes.plot(t, weigh(drift, other) * other.total(t), "--", color="black", linewidth=1.3, label="GRPO", zorder=4)
    panel(axes, "(d) total objective", xlim=(0, drift.longest), xlabel="t", ylabel="objective J")
    axes.legend(fontsize=9, loc="best")


def _markers(axes: Axes, drift: Drift) -> None:
    leaves = [s.name for s in drift.op.hierarchy.leaves]
    for e in drift.events:
        if e.stratum in leaves:
            axes.axvline(e.t, color=INK, linewidth=0.8, alpha=0.45, zorder=1)
        else:
            style = "-" if e.before == "passed" else ":"
            axes.axvline(e.t, color=CHANNEL_COLOUR[e.channel], linestyle=style, linewidth=1.3, alpha=0.8, zorder=1)
