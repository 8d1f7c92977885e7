"""Kernels on small concrete hierarchies: the weights of the elements over each element."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fibration.language.exact import TooLarge
from fibration.language.hierarchy import Hierarchy
from fibration.language.kernels import Fibration
from fibration.language.traversal import atoms
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.search import concretes

Cover = tuple[Fibration, ...]


Fibre = list[tuple[Fibration, int, Fraction | None]]  # source elements over one target element; None: without a value


def weights(h: Hierarchy, cover: Cover) -> Iterator[tuple[Concrete, int, Fibre]]:
    """For every target element of the candidates: the elements over it, with their weights."""
    read = {f: list(atoms(f.weight)) for f in cover}
    # most elements of a regular hierarchy read the same
    known: dict[tuple[int, tuple[Fraction, ...]], Fraction | None] = {}
    for concrete in concretes(h, [f.weight for f in cover]):
        for b in range(concrete.size[cover[0].target]):
            fibre: Fibre = []
            try:
                for i, f in enumerate(cover):
                    for a in concrete.over(f.source, f.target, b):
                        key = i, tuple(concrete.atom(e, f.source, a) for e in read[f])
                        if key not in known:
                            known[key] = concrete.attempt(f.weight, f.source, a)
                        fibre.append((f, a, known[key]))
            except TooLarge:
                continue
            yield concrete, b, fibre
