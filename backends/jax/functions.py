"""What generated modules are written with: the elements of a batch with static shapes, and sums along fibrations.

`emit.py` copies this text into the modules that it writes. Only those modules import JAX.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

WIDTH = 32  # how many numbers are added up at a time


class Fibre(NamedTuple):
    """The map from source elements to target elements. An absent source element belongs to no target.

    `order` sorts the sources by target (None: they are sorted, with absent ones between them). `first` and `last` are
    the places of each target's sources in this order; without sources, `last` is below `first`. If `grid` is
    `(targets, n)`, each target has `n` sources, one target after the other.
    """

    parent: Array  # int [source]: the target of each source element; any target where it is absent
    present: Array  # bool [source]
    targets: int
    first: Array  # int [target]
    last: Array  # int [target]
    grid: tuple[int, int] | None = None
    order: Array | None = None  # int [source]


def blocks(x: Array, reduce: str) -> Array:
    """Sums (or takes the maximum) over blocks of `WIDTH` numbers of the last axis; the last block may be shorter."""
    add, nothing = (jnp.sum, 0.0) if reduce == "sum" else (jnp.max, -jnp.inf)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % WIDTH)], constant_values=nothing)
    return add(x.reshape(*x.shape[:-1], -1, WIDTH), axis=-1)


def push(x: Array, f: Fibre, reduce: str = "sum") -> Array:
    """Sums (or takes the maximum) over every fibre, in a fixed order: [source] -> [target].

    A number is in at most `2·WIDTH` additions for each power of `WIDTH` up to the number of sources. No value of one
    fibre enters the sum of another. The sum over an empty fibre is 0, the maximum -inf.
    """
    nothing = 0.0 if reduce == "sum" else -jnp.inf
    x = jnp.where(f.present, x, nothing)
    if f.grid is not None:
        x = x.reshape(f.grid)
        while x.shape[-1] > 1:
            x = blocks(x, reduce)
        return x[:, 0]
    x = x if f.order is None else x[f.order]
    total = jnp.full(f.targets, nothing, x.dtype)
    low, high = f.first, f.last + 1
    while True:  # numbers outside of whole blocks are added here; then the blocks are the numbers
        inner = jnp.minimum(-(-low // WIDTH) * WIDTH, high)
        for start, end in ((low, inner), (jnp.maximum(high // WIDTH * WIDTH, inner), high)):
            place = start[:, None] + jnp.arange(WIDTH)
            part = jnp.where(place < end[:, None], x[jnp.minimum(place, x.shape[0] - 1)], nothing)
            total = total + jnp.sum(part, 1) if reduce == "sum" else jnp.maximum(total, jnp.max(part, 1))
        if x.shape[0] < WIDTH:
            return total
        low, high = -(-low // WIDTH), high // WIDTH
        x, high = blocks(x, reduce), jnp.maximum(low, high)


def pull(x: Array, f: Fibre) -> Array:
    """Gives every source element the value of its target: [target] -> [source]."""
    x = jnp.broadcast_to(x, (f.targets,))
    if f.grid is not None:
        return jnp.broadcast_to(x[:, None], f.grid).reshape(-1)
    # The copy makes XLA compute x once. On CPUs it would compute x again at each source, even behind a barrier.
    copy = jnp.zeros_like(x).at[jnp.arange(f.targets)].set(x, indices_are_sorted=True, unique_indices=True)
    return copy[f.parent]


def spread(x: Array, f: Fibre) -> Array:
    """Gives every source element the value of the batch: [1] -> [source]."""
    return jnp.broadcast_to(x, f.parent.shape)


def quantile(x: Array, f: Fibre, level: Array) -> Array:
    """Returns the quantile of the source elements of each target: [target].

    It interpolates linearly at `level·(n - 1)` among `n` sorted values: NaN if a value is NaN, 0 over an empty fibre.
    """
    parent = jnp.where(f.present, f.parent, f.targets)
    x = jnp.broadcast_to(x, parent.shape) + 0.0  # + 0.0 makes -0.0 0.0, so that ties have one result
    x = x[jnp.lexsort((x, parent))]  # by target, ascending, NaN last; absent elements at the end
    sizes = jnp.zeros(f.targets, jnp.int32).at[parent].add(1, mode="drop")
    first, last = jnp.cumsum(sizes) - sizes, jnp.maximum(sizes - 1, 0)
    place = last * level
    low = jnp.floor(place).astype(jnp.int32)
    a, b, t = x[first + low], x[first + jnp.minimum(low + 1, last)], place - low
    gap = b - a
    between = jnp.where(t < 0.5, a + gap * t, b - gap * (1 - t))  # from the nearer end
    between = jnp.where(jnp.isinf(gap), a * (1 - t) + b * t, between)
    between = jnp.where((t == 0) | (a == b), a, between)
    between = jnp.where(jnp.isnan(x[first + last]), jnp.nan, between)
    return jnp.where(sizes > 0, between, 0.0)


def scan(x: Array, f: Fibre, discount: Array, forward: bool) -> Array:
    """`Σ discount^(t-s)·x_s` over all tokens s before t (or after t) of the same target: [token].

    Masked tokens are not counted. No sum is a difference of sums, and none depends on another target.
    """
    place = jnp.where(f.present, f.parent, f.targets)
    order = jnp.argsort(place, stable=True)  # the tokens of each target, in order; masked ones last
    place, number = place[order], jnp.arange(order.shape[0])
    bounds = jnp.searchsorted(place, jnp.arange(f.targets + 2))
    room = number - bounds[place] if forward else bounds[place + 1] - 1 - number  # how many precede, or follow
    way = 1 if forward else -1

    def step(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        (share, x), reach = carry, jnp.left_shift(1, k)
        return share * share, jnp.where(room >= reach, x + share * jnp.roll(x, way * reach), x)

    # after k steps, at every token, the sum over 2^k tokens up to it
    carry = discount.reshape(()), jnp.broadcast_to(x, place.shape)[order]
    _, x = lax.fori_loop(0, max(order.shape[0] - 1, 0).bit_length(), step, carry)
    x = jnp.where((room >= 1) & (place < f.targets), discount * jnp.roll(x, way), 0.0)
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True)


class Layout:
    """The elements of one batch, and the fibrations between them.

    Every stratum has a fixed number of elements, so shapes are static under `jax.jit`. Masked tokens, and elements
    without an unmasked token, are absent: no count and no sum includes them. `checks` has a bool per rule that labels
    must keep; if one is False, every result is NaN.
    """

    def __init__(
        self,
        leaf: str,
        rows: str,
        shape: tuple[int, ...],
        mask: Any,
        segments: Any,
        n_rows: int | None,
        labels: dict[str, tuple[Any, int | None, str]],
    ) -> None:
        """`labels`: for each stratum, the labels, how many there are, and the stratum whose elements have them."""
        self.leaf, self.rows, self.shape = leaf, rows, shape
        self.real = jnp.result_type(float)  # float64 if jax_enable_x64 is set, else float32
        self.checks: list[Array] = []
        self.fibres: dict[tuple[str, str], Fibre] = {}
        n = math.prod(shape)
        present = jnp.ones(n, bool) if mask is None else self._shaped("mask", mask, shape) != 0
        self.grid: tuple[int, int] | None = None
        if segments is None:
            if len(shape) != 2 or n_rows not in (None, shape[0]):
                ways = f"a mask or tensors of shape [{rows}, tokens], or segments and n_{rows}"
                raise ValueError(f"the batch has shape {shape}: pass {ways}")
            n_rows, self.grid = shape[0], (shape[0], shape[1])
            self.row = jnp.repeat(jnp.arange(n_rows), shape[1], total_repeat_length=n)
        else:
            if n_rows is None:
                raise ValueError(f"segments need n_{rows}, the number of {rows} elements, as a Python integer")
            given = self._shaped("segments", self._whole("segments", segments), shape)
            present &= given >= 0
            self.row = jnp.clip(given, 0, n_rows - 1)
            place, every = jnp.where(present, given, n_rows), jnp.arange(n)
            first = jnp.full(n_rows, n).at[place].min(every, mode="drop")
            last = jnp.full(n_rows, -1).at[place].max(every, mode="drop")
            ends = jnp.concatenate([jnp.full(1, -1), lax.cummax(last)[:-1]])  # of all rows before
            self.checks += [jnp.all((last < 0) | (ends < first)), jnp.all(~present | (given < n_rows))]
            self.fibres[leaf, rows] = Fibre(self.row, present, n_rows, first, last)
        self.size = {"batch": 1, leaf: n, rows: n_rows}
        self.labels: dict[str, tuple[str, Array]] = {rows: (leaf, self.row)}
        self.present = {leaf: present}
        self.present[rows] = push(jnp.ones((), self.real), self.fibre(leaf, rows)) > 0
        for stratum, (values, number, at) in labels.items():
            self._label(stratum, values, self.size[at] if number is None else number, at)

    def _label(self, stratum: str, values: Any, number: int, at: str) -> None:
        values = self._whole(stratum, values)
        if at == self.leaf and jnp.shape(values) == (self.size[self.rows],) != self.shape:
            values = values[self.row].reshape(self.shape)  # one per row
        label = self._shaped(stratum, values, self.shape if at == self.leaf else (self.size[at],))
        self.checks.append(jnp.all(~self.present[at] | ((label >= 0) & (label < number))))
        label = jnp.clip(label, 0, number - 1)
        self.size[stratum], self.labels[stratum] = number, (at, label)
        place = jnp.where(self.present[at], label, number)
        self.present[stratum] = jnp.zeros(number, bool).at[place].set(True, mode="drop")

    @staticmethod
    def _whole(name: str, values: Any) -> Array:
        found = jnp.asarray(values)
        if not jnp.issubdtype(found.dtype, jnp.integer):
            raise ValueError(f"{name} is {found.dtype}: pass whole numbers")
        return found

    @staticmethod
    def _shaped(name: str, values: Any, shape: tuple[int, ...]) -> Array:
        if jnp.shape(values) != shape:
            raise ValueError(f"{name} has shape {jnp.shape(values)}: pass shape {shape}")
        return jnp.asarray(values).reshape(-1)

    def parent(self, source: str, target: str) -> Array:
        """The target of every source element: int32 [source]. All tokens of an element must agree."""
        at, label = self.labels[target]
        if source == at:
            return label
        if source == self.leaf:
            return label[self.row]
        below, own = self.labels[source]
        label = label if below == at else label[self.row]
        place = jnp.where(self.present[below], own, self.size[source])
        high = jnp.full(self.size[source], -1).at[place].max(label, mode="drop")
        low = jnp.full(self.size[source], self.size[target]).at[place].min(label, mode="drop")
        self.checks.append(jnp.all(~self.present[source] | (low == high)))
        return jnp.maximum(high, 0)

    def fibre(self, source: str, target: str) -> Fibre:
        """The fibration between two strata."""
        if (source, target) not in self.fibres:
            self.fibres[source, target] = self._fibre(source, target)
        return self.fibres[source, target]

    def _fibre(self, source: str, target: str) -> Fibre:
        present, sources, targets = self.present[source], self.size[source], self.size[target]
        if target == "batch":
            zero = jnp.zeros(1, int)
            return Fibre(jnp.zeros(sources, int), present, 1, zero, zero + sources - 1, grid=(1, sources))
        parent = self.parent(source, target)
        if (source, target) == (self.leaf, self.rows) and self.grid is not None:
            first = jnp.arange(targets) * self.grid[1]
            return Fibre(parent, present, targets, first, first + self.grid[1] - 1, grid=self.grid)
        place = jnp.where(present, parent, targets)
        order = jnp.argsort(place, stable=True)
        first, end = (jnp.searchsorted(place[order], jnp.arange(targets), side) for side in ("left", "right"))
        return Fibre(parent, present, targets, first, end - 1, order=order)

    def count(self, of: str, over: str) -> Array:
        """The number of `of` elements over each `over` element: [over]; 1 for an absent `over` element."""
        if over == "batch":
            counts = jnp.sum(self.present[of], keepdims=True)
        elif (of, over) == (self.leaf, self.rows):
            counts = push(jnp.ones((), self.real), self.fibre(of, over))
        else:
            place = jnp.where(self.present[of], self.parent(of, over), self.size[over])
            counts = jnp.zeros(self.size[over], int).at[place].add(1, mode="drop")
        return jnp.maximum(counts, 1).astype(self.real)

    def tokens(self, name: str, values: Any) -> Array:
        """A tensor of floats over the tokens, as [token]; 0 at masked tokens."""
        if not jnp.issubdtype(jnp.result_type(values), jnp.floating):
            raise ValueError(f"{name} is {jnp.result_type(values)}: pass floats")
        flat = self._shaped(name, lax.stop_gradient(values), self.shape).astype(self.real)
        return jnp.where(self.present[self.leaf], flat, 0.0)

    def vector(self, name: str, values: Any, stratum: str) -> Array:
        """One number, or one per element of a stratum, as [stratum]."""
        if stratum == self.leaf and jnp.shape(values) == self.shape:
            return self.tokens(name, jnp.asarray(values, self.real))
        size, found = self.size[stratum], lax.stop_gradient(jnp.asarray(values, self.real))
        if found.shape not in ((), (1,), (size,)):
            shape = self.shape if stratum == self.leaf else (size,)
            each = "" if stratum == "batch" else f", or shape {shape}, one per {stratum}"
            raise ValueError(f"{name} has shape {found.shape}: pass one number{each}")
        return jnp.broadcast_to(found, (size,))

    def given(self, name: str, values: Any, stratum: str, of_rows: bool = True) -> Array:
        """Advantages or rewards, per token or (`of_rows`) per row, as [stratum]; NaN where its tokens differ."""
        found = lax.stop_gradient(jnp.asarray(values, self.real))
        per_token, per_row = found.shape == self.shape, of_rows and found.shape == (self.size[self.rows],)
        if not per_token and not per_row:
            ways = f"{self.shape}, one per token" + f", or ({self.size[self.rows]},), one per {self.rows}" * of_rows
            raise ValueError(f"{name} has shape {found.shape}: pass shape {ways}")
        if stratum == self.rows and not per_token:
            return found
        if stratum == self.leaf:
            of_row = pull(found, self.fibre(self.leaf, self.rows)) if per_row else found.reshape(-1)
            of_token = found.reshape(-1) if per_token else of_row
            agreed = jnp.where(of_row == of_token, of_token, jnp.nan)  # differ only where the shape has two readings
            return jnp.where(self.present[self.leaf], agreed, 0.0)
        at_tokens, f = self.given(name, values, self.leaf, of_rows), self.fibre(self.leaf, stratum)
        low, high = -push(-at_tokens, f, "max"), push(at_tokens, f, "max")
        return jnp.where(low == high, low, jnp.nan)

    def result(self, values: Array, stratum: str, dtype: Any) -> Array:
        """A result: [] of the batch, in the shape of the tokens, or one number per row; 0 at absent elements."""
        values = jnp.broadcast_to(values, (self.size[stratum],))
        shape = {"batch": (), self.leaf: self.shape}.get(stratum, (self.size[stratum],))
        if stratum != "batch":
            values = jnp.where(self.present[stratum], values, 0.0)
        for kept in self.checks:
            values = jnp.where(kept, values, jnp.nan)
        return values.reshape(shape).astype(dtype)


@jax.custom_vjp
def with_gradient(log_probs: Array, value: Array, coefficients: Array) -> Array:
    """Returns `value`; its gradient with respect to `log_probs` is `coefficients`."""
    return value


def _forward(log_probs: Array, value: Array, coefficients: Array) -> tuple[Array, Array]:
    return value, coefficients


def _backward(coefficients: Array, cotangent: Array) -> tuple[Array, None, None]:
    return cotangent * coefficients, None, None


with_gradient.defvjp(_forward, _backward)
