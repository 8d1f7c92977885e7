"""What is worked out of an index: once and kept, numbers added up over strata, and parents of every element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch import Tensor

from fibration.runtime.batch import Codes
from fibration.runtime.sums import Sums, Vector

Edge = tuple[str, str]  # names of the strata that a fibration leads from and to
P = ParamSpec("P")
T = TypeVar("T")
Holder = TypeVar("Holder", bound="Holding")


class Holding(Protocol):
    """What keeps answers as long as it lives."""

    @property
    def _cache(self) -> dict[Any, Any]: ...


class Fibred(Protocol):
    """What is asked of an index here: see there."""

    @property
    def edges(self) -> Mapping[Edge, Tensor]: ...
    @property
    def size(self) -> Mapping[str, int]: ...
    def parent(self, source: str, target: str) -> Tensor: ...
    def between(self, source: str, over: str) -> str | None: ...
    def added(self, source: str, at: Codes, values: Vector, size: int) -> Sums: ...


def once(method: Callable[Concatenate[Holder, P], T]) -> Callable[Concatenate[Holder, P], T]:
    """What a method of an index answers is worked out once per arguments, and lives as long as the index."""

    @wraps(method)
    def answer(self: Holder, *arguments: P.args, **named: P.kwargs) -> T:
        key = (method.__name__, arguments, *named.items())
        if key not in self._cache:
            self._cache[key] = method(self, *arguments, **named)
        return self._cache[key]  # type: ignore[no-any-return]

    return answer


@dataclass(frozen=True)
class Summed:
    """A number per element of one stratum, which is added up once over each coarser one."""

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
            else:  # far fewer of them, and exact
                self.known[stratum] = self.over(between).over(parent, size)
        return self.known[stratum]


class Parents(Mapping[Edge, Tensor]):
    """The fibrations of an index, for every element of their sources, those of tokens too."""

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
