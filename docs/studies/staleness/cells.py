"""Results as arrays over seeds: one cell for each arm, condition and setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from choose import Setting, areas
from measures import QUESTIONS
from rl import CONDITIONS
from stats import Array, collapsed


def counted(condition: str) -> list[int]:
    """The domains whose task is what is rewarded: where a trick is, accuracy says nothing."""
    return [domain for domain, trick in enumerate(CONDITIONS[condition].tricks) if trick is None]


@dataclass(frozen=True)
class Cell:
    """Runs of one arm in one condition at one setting; arrays are `[seeds]`, series `[seeds, looks]`."""

    arm: str
    condition: str
    setting: Setting
    runs: tuple[Mapping, ...]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(line["run"]["seed"] for line in self.runs)

    def measured(self, name: str) -> Array:
        return np.array([line["measured"][name] for line in self.runs], float)

    @cached_property
    def accuracy(self) -> Array:
        """Of the domains that count, `[seeds, looks, domains]`."""
        return self.measured("right")[..., counted(self.condition)] / QUESTIONS

    @cached_property
    def mean_area(self) -> Array:
        return self._areas[:, 0]

    @cached_property
    def worst_area(self) -> Array:
        return self._areas[:, 1]

    @cached_property
    def score(self) -> Array:
        """The mean of both primary measures."""
        return self._areas.mean(1)

    @cached_property
    def _areas(self) -> Array:
        return np.array([areas(accuracy) for accuracy in self.accuracy])

    @cached_property
    def final(self) -> Array:
        return self.accuracy[:, -1].mean(-1)

    @cached_property
    def collapses(self) -> np.ndarray:
        """Whether any domain that counts has collapsed at a look or before, `[seeds, looks]`."""
        return np.array([collapsed(accuracy * QUESTIONS).any(1) for accuracy in self.accuracy])

    @cached_property
    def path(self) -> Array:
        """KL of the path: what was moved from look to look, in nats a token, a mean over domains."""
        return self.measured("moved").mean(-1).sum(-1)

    @cached_property
    def gated(self) -> dict[str, float]:
        """Share of elements whose residual a level's gate does not pass as it is, over runs and steps, by level."""
        names = [name for name in self.runs[0]["measured"] if name.startswith("gated/")]
        return {name.removeprefix("gated/"): float(self.measured(name).mean()) for name in names}

    def of(self, name: str, seeds: Iterable[int]) -> Array:
        """A measure by these seeds, in their order."""
        found = dict(zip(self.seeds, getattr(self, name), strict=True))
        return np.array([found[seed] for seed in seeds])


Cells = dict[tuple[str, str, Setting], Cell]


def cells(lines: Iterable[Mapping]) -> Cells:
    """By condition, arm and setting, each with its seeds in order."""
    found: dict[tuple[str, str, Setting], dict[int, Mapping]] = defaultdict(dict)
    for line in lines:
        run = line["run"]
        found[run["condition"], run["arm"], (run["lr"], run["trust"])][run["seed"]] = line
    return {
        (condition, arm, setting): Cell(arm, condition, setting, tuple(of[seed] for seed in sorted(of)))
        for (condition, arm, setting), of in found.items()
    }


def identical(x: Cell, y: Cell) -> int:
    """Of how many seeds both went the same way, to the last answer and the last step."""
    mine, other = ({line["run"]["seed"]: line["measured"] for line in cell.runs} for cell in (x, y))
    return sum(all(mine[s][name] == other[s][name] for name in ("right", "moved")) for s in pairs(x, y))


def pairs(x: Cell, y: Cell) -> list[int]:
    """Seeds that both have."""
    return sorted({*x.seeds} & {*y.seeds})
