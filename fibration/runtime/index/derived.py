"""Values computed from an index: cached results, sums over strata, and parents of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch import Tensor

from fibration.runtime.batch import Codes
from fibration.runtime.sums import Sums, Vector

Edge = tuple[str, str]  # names of a fibration's source and target
P = ParamSpec("P")
T = TypeVar("T")
Holder = TypeVar("Holder", bound="Holding")


class Holding(Protocol):
    """An object with a cache."""

    @property
    def _cache(self) -> dict[Any, Any]: ...


class Fibred(Protocol):
    """The part of `Index` that this module uses."""

    @property
    def edges(self) -> Mapping[Edge, Tensor]: ...
    @property
    def size(self) -> Mapping[str, int]: ...
    def parent(self, source: str, target: str) -> Tensor: ...
    def between(self, source: str, over: str) -> str | None: ...
    def added(self, source: str, at: Codes, values: Vector, size: int) -> Sums: ...


def once(method: Callable[Concatenate[Holder, P], T]) -> Callable[Concatenate[Holder, P], T]:
    """Cache a method's result per arguments, for the lifetime of the index."""

    @wraps(method)
    def answer(self: Holder, *arguments: P.args, **named: P.kwargs) -> T:
        key = (method.__name__, arguments, *named.items())
        if key not in self._cache:
            self._cache[key] = method(self, *arguments, **named)
        return self._cache[key]  # type: ignore[no-any-return]

    return answer


@dataclass(frozen=True)
class Summed:
    """One number per element of a stratum, and its sums over coarser strata, which are cached."""

    index: Fibred
    source: str
    values: Vector
    known: dict[str, Sums] = field(default_factory=dict)

    def over(self, stratum: str) -> Sums:
        if stratum not in self.known:
            between, size = self.index.between(self.source, stratum), self.index.size[stratum]
            parent = self.index.parent(between or self.source, stratum).cpu().numpy()
            if between is None:
                self.known[stratum] = self.index.added(self.source, parent, self.values, size)
            else:  # far fewer elements, and exact
                self.known[stratum] = self.over(between).over(parent, size)
        return self.known[stratum]


class Parents(Mapping[Edge, Tensor]):
    """The fibrations of an index, as the parent of every element of the source."""

    def __init__(self, index: Fibred) -> None:
        self.index = index

    def __getitem__(self, edge: Edge) -> Tensor:
        if edge not in self.index.edges:
            raise KeyError(edge)
        return self.index.parent(*edge)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.index.edges)

    def __len__(self) -> int:
        return len(self.index.edges)
