"""The micro-batches of an optimizer step: the forward passes that they need beforehand, and the coefficients of each.

A micro-batch is trained on in a forward pass with a graph, which gives its log-probs. Weights do not move within a
step, so that log-probs of other micro-batches may be computed before, without a graph. How many must be:

- a row-local loss needs none: each micro-batch has its coefficients from its own log-probs;
- so does a loss that couples rows, if each micro-batch has whole coupled elements (prompt groups, for example);
- otherwise the micro-batches fall into the smallest sets that have whole elements. The first one of a set needs the
  log-probs of the others. Its own forward pass then gives the coefficients of the whole set.

The whole step is one set, and ranks meet at its first micro-batch, if on any rank a set would reach over ranks, or if a
trajectory has several rows and the loss couples its tokens.

**Dead rows** have coefficients that are 0 whatever the log-probs are. Their trained pass would have no gradient, so
`live` leaves them out. Where a micro-batch has its coefficients beforehand, it leaves out each row whose coefficients
are 0. A row whose log-probs the coefficients of others read is kept. Where a row left out has no log-probs, the old
ones stand in for them, which changes neither other coefficients nor `J`. Metrics then cover the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from fibration.errors import FibrationError, TrainerError, shown
from fibration.runtime.index.micro import closed_sets, coupled_rows
from fibration.runtime.metrics import Coefficients
from fibration.runtime.ranks.group import agreed
from fibration.trainers.window import Window


class MicroBatches:
    """The micro-batches of a window on one rank, in the order in which a step trains on them.

    `rows`: the rows of every micro-batch in the window, int64 `[b]` each, together all rows once; None if
    `window.is_row_local`, whose micro-batches may have any rows. `trained`: the places in `rows` of the micro-batches
    that the step trains on, in order, all of them once by default. `fresh`: the current weights sampled all rows, so
    that ratios are 1. `metrics`: as in `op.coefficients`. `skip_dead`: `live` leaves rows out.

    `needed`: the places of the micro-batches whose log-probs `add` must get before the first call of `coefficients`.
    There are as many on every rank of the window, at most all but one.

    **Dropout, padding, kernels.** Coefficients of a set are computed once, from the log-probs of the trained pass of
    its first micro-batch and from those that `add` got of the others. Later micro-batches keep them, also if their own
    trained pass has other log-probs. `measure` reports how far these differ.

    All ranks make all calls, in the same order.
    """

    def __init__(
        self,
        window: Window,
        rows: Sequence[Tensor] | None = None,
        trained: Sequence[int] | None = None,
        *,
        fresh: bool = False,
        metrics: bool | str | Sequence[str] = True,
        skip_dead: bool = False,
    ) -> None:
        self.window, self.rows, self.metrics, self.skip_dead = window, rows, metrics, skip_dead
        self.trained = trained if trained is not None or rows is None else range(len(rows))
        self.needed: tuple[int, ...] = ()
        self.seen = torch.zeros(len(window.mask), dtype=torch.bool)  # rows of micro-batches that were trained on
        self._known = self.seen.clone()  # rows with log-probs of a pass
        self._passed = self.seen.clone()  # rows with log-probs of the trained pass
        self._trained = [0, 0]  # rows with tokens: of trained passes, without stand-ins, and of their micro-batches
        self._count = 0  # micro-batches that were trained on
        self._next: tuple[Tensor, Tensor] | None = None  # the rows of the next micro-batch, and which are live
        self._stands_in = False  # whether its live row is a stand-in
        self._filled = window.mask.any(1).cpu()  # rows with tokens
        self._fresh = fresh
        self._coef: Coefficients | None = window.coefficients(None, metrics=metrics) if fresh else None
        self._first: Tensor | None = window.old_log_probs if fresh else None  # what coefficients are computed from
        self._second: Tensor | None = None  # of the trained pass
        self._sets: Sequence[int] | None = None  # per micro-batch, the first of its set; None: it is alone
        self._values: Tensor | None = None  # coefficients of sets of several micro-batches
        self._live: Tensor | None = None  # before coefficients are known: the rows that they may not be 0 of, or read
        self._joint = False  # the whole window is one set
        self._error: FibrationError | None = None
        if not fresh and not window.is_row_local:
            self._plan()
        if not fresh and not self._joint:
            window.freeze()
            if skip_dead:
                live = window.live()
                self._live = (live if window.index is None else coupled_rows(window.index, live)).cpu()

    def _plan(self) -> None:
        window, rows, trained = self.window, self.rows, self.trained
        assert rows is not None and trained is not None and window.index is not None
        apart = window.has_parts and list(trained) == list(range(len(rows)))
        sets = closed_sets(window.index, rows) if apart else None
        mine = -1 if sets is None or (window.ranks is None and not sets.any()) else len(rows) - len(set(sets.tolist()))
        counts = window.gathered(torch.tensor([mine], device=window.mask.device), "passes before a step").tolist()
        self._joint = min(counts)[0] < 0
        self._sets = [trained[0]] * len(rows) if self._joint or sets is None else sets.tolist()
        later = [place for place, first in enumerate(self._sets) if place != first]
        firsts = [place for place, first in enumerate(self._sets) if place == first]
        size = len(later) if self._joint else max(counts)[0]  # as many passes on all ranks: a model may be sharded
        self.needed = tuple(sorted(later + firsts[::-1][: size - len(later)]))

    @property
    def is_whole(self) -> bool:
        """Whether coefficients and metrics are of all rows of the window, not of those that the step trains on."""
        return self._fresh or self._joint

    @property
    def done(self) -> bool:
        """Whether all micro-batches were trained on."""
        return bool(self.seen.all()) if self.trained is None else self._count == len(self.trained)

    def add(self, place: int, log_probs: Tensor) -> None:
        """Take the log-probs `[b, t]`, t ≤ T, of a micro-batch that is trained on later."""
        assert self.rows is not None
        self._keep_first(self.rows[place], self._wide(log_probs))
        self._known[self.rows[place]] = True

    @torch.no_grad()
    def live(self, rows: Tensor | None = None) -> Tensor:
        """The rows of the next micro-batch that its trained pass needs, at least one: bool `[b]`, on the CPU.

        The pass may leave out the others, because their coefficients are 0. All of them with `skip_dead=False`.
        `rows`: as in `coefficients`.
        """
        planned = self._planned(rows)
        known = self._coef.values if self._coef is not None else None if self._begins(self._place) else self._values
        if self.skip_dead and known is not None:
            live = (known[planned] != 0).any(1).cpu()
        elif self._live is not None:
            live = self._live[planned]
        else:
            live = torch.ones(len(planned), dtype=torch.bool)
        self._stands_in = not live.any() and len(live) > 0
        if self._stands_in:
            live[int(self._filled[planned].int().argmax())] = True
        self._next = planned, live
        return live

    @property
    def _place(self) -> int | None:
        """The place of the next micro-batch, if the rows of all are known and one is left."""
        return None if self.trained is None or self._count >= len(self.trained) else self.trained[self._count]

    def _begins(self, place: int | None) -> bool:
        """Whether a micro-batch is the first of its set."""
        return self._sets is None or place is None or self._sets[place] == place

    def _planned(self, rows: Tensor | None) -> Tensor:
        """The rows of the next micro-batch. TrainerError if they are not `rows`."""
        place, rows = self._place, None if rows is None else rows.cpu()
        planned = rows if self.rows is None else None if place is None else self.rows[place]
        if planned is None or (rows is not None and not torch.equal(rows, planned)):
            raise self._unplanned(rows, planned)
        return planned

    @torch.no_grad()
    def coefficients(self, log_probs: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The coefficients `[b, t]` of the next micro-batch, and its part of `J`.

        `log_probs`: `[b, t]`, t ≤ T, of its trained pass. `rows`: its rows. They may be left out where the rows of all
        micro-batches are known, and else must be the same. After `live`, both are of the live rows alone, and so are
        the coefficients. The parts of all micro-batches add up to `J`, on average over ranks.
        """
        if self._next is None:
            planned = self._planned(rows)
            live = torch.ones(len(planned), dtype=torch.bool)
        else:
            planned, live = self._next
            if rows is not None and not torch.equal(rows.cpu(), planned[live]):
                raise self._unplanned(rows.cpu(), planned[live])
        now, passed = self._wide(log_probs), planned[live]
        self._second = self._stored(self._second, passed, now)
        if len(passed) < len(planned):
            every = self._stand_in(now)[planned].to(now)
            every[live.to(now.device)] = now
            now = every
        with torch.autocast(now.device.type, enabled=False):
            values, objective = self._computed(self._place, planned, now)
        self.seen[planned] = True
        self._passed[passed] = True
        trained = passed[:0] if self._stands_in else passed
        self._known[trained] = True
        counts = [int(self._filled[rows].sum()) for rows in (trained, planned)]
        self._trained = [a + b for a, b in zip(self._trained, counts, strict=True)]
        self._count, self._next, self._stands_in = self._count + 1, None, False
        values = values if len(passed) == len(planned) else values[live.to(values.device)]
        return values[:, : log_probs.shape[1]], objective

    def _computed(self, place: int | None, rows: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients `[b, T]` and a part of `J`; the whole part of a set comes with its first micro-batch."""
        if not self._joint and not self._fresh and self._begins(place):
            first = self._keep_first(rows, now)
            members = [rows] if self._sets is None or place is None else self._members(place)
            together = torch.cat(members)
            values, objective = self._part(together, first[together])
            if len(members) > 1:
                self._values = self._stored(self._values, together, values)
            return values[: len(rows)], objective
        if self._joint and not self._count:
            self._coef = self.window.coefficients(self._keep_first(rows, now), metrics=self.metrics)
        if self._coef is not None:
            return self._coef.values[rows], now.new_zeros(()) if self._count else self._coef.objective
        assert self._values is not None
        return self._values[rows], now.new_zeros(())

    def _members(self, place: int) -> list[Tensor]:
        """The rows of every micro-batch in the set of `place`."""
        assert self._sets is not None and self.rows is not None
        pairs = zip(self._sets, self.rows, strict=True)
        return [rows for first, rows in pairs if first == self._sets[place]]

    def _part(self, rows: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        ranks = 1 if self.window.ranks is None else self.window.ranks.size
        try:
            part = self.window.part(rows, now)
        except FibrationError as error:
            if ranks == 1:
                raise
            self._error = self._error or error  # if this rank raised now, the others would wait for its gradients
            return torch.zeros_like(now), now.new_zeros(())
        return part.values, part.objective * ranks

    @torch.no_grad()
    def measure(self, window: Window | None = None) -> dict[str, float]:
        """The metrics of the step and `pass/...`, once `done`. Raises an error of a micro-batch on all ranks.

        `window`: of the rows that the step trains on, in the order of training, if these are to be measured alone.
        `rows_trained`: of these rows, on all ranks, those with tokens: the share in the trained passes, without
        stand-ins. Metrics cover all rows, or are named `live/...`: in a step that has no coefficients before its
        trained passes and leaves rows out, they cover the rows whose log-probs a pass computed. `objective` always is
        that of all rows.

        `pass/...` compares the trained pass with the log-probs that gave the coefficients (`Window.compare`), where a
        row has both. It is left out where these are the same: in a step that is not fresh and has no `needed`.
        """
        with torch.autocast(self.window.mask.device.type, enabled=False):
            lacks = (self._filled & self.seen & ~self._known).any() and self._coef is None
            mine = torch.tensor([*self._trained, int(lacks)], device=self.window.mask.device)
            passed, given, lacking = self.window.gathered(mine, "the rows that were trained on").sum(0).tolist()
            found = self._coef.scalars() if self._coef is not None else self._measured(window, bool(lacking))
            found["rows_trained"] = passed / given if given else 1.0
            if window is not None or not (self._fresh or self.needed):
                return found
            second = self.window.mask * 0.0 if self._second is None else self._second
            return {**found, **self.window.compare(second, self._passed.to(second.device))}

    def _measured(self, window: Window | None, lacking: bool) -> dict[str, float]:
        """`lacking`: whether some rows have no log-probs on some rank."""
        first, known = self._first, self._known
        assert first is not None
        if window is not None:
            assert self.rows is not None and self.trained is not None
            rows = torch.cat([self.rows[place] for place in self.trained])
            first, known = first[rows], known[rows]
        of = window or self.window
        coef = of.coefficients(first, metrics=False if lacking else self.metrics)
        with agreed(self.window.ranks, "the micro-batches of a step"):
            if self._error is not None:
                raise self._error
        if not lacking:
            return coef.scalars()
        of_live = of.metrics_of(known.to(first.device), first, self.metrics)
        return {"objective": float(coef.objective), **{f"live/{name}": number for name, number in of_live.items()}}

    def _wide(self, log_probs: Tensor) -> Tensor:
        """`[b, T]`, detached, in float32 at least."""
        width = self.window.mask.shape[1] - log_probs.shape[1]
        return pad(log_probs.detach().to(torch.promote_types(log_probs.dtype, torch.float32)), (0, width))

    def _keep_first(self, rows: Tensor, values: Tensor) -> Tensor:
        """Keep log-probs from which coefficients are computed. Returns those of the whole window, `[B, T]`."""
        first = self._stand_in(values).to(values, copy=True) if self._first is None else self._first
        self._first = self._stored(first, rows, values)
        return self._first

    def _stand_in(self, like: Tensor) -> Tensor:
        """`[B, T]`: the log-probs from which coefficients are computed, as far as they are known; else the old ones."""
        if self._first is not None:
            return self._first
        old = self.window.old_log_probs
        return like.new_zeros(self.window.mask.shape) if old is None else old

    def _stored(self, into: Tensor | None, rows: Tensor, values: Tensor) -> Tensor:
        """`[B, T]` with the values of these rows."""
        if into is None:
            into = values.new_zeros(self.window.mask.shape)
        into[rows] = values.to(into)
        return into

    def _unplanned(self, rows: Tensor | None, planned: Tensor | None) -> TrainerError:
        more = self.trained is not None and self._count >= len(self.trained)
        return TrainerError(
            f"micro-batch {self._count + 1} of a step has rows {'unknown' if rows is None else shown(rows.tolist())}",
            required=f"{len(self.trained or ())} micro-batches in a step"
            if more
            else f"rows {'int64 [b]' if planned is None else shown(planned.tolist())}, as planned",
            remedy="leave the micro-batches as the trainer makes them",
        )
