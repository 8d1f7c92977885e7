"""Numbers that stand for objects in torch operators, which take tensors and numbers only. References are weak."""

from __future__ import annotations

import itertools
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fibration.errors import BatchError

T = TypeVar("T")


class Handles(Generic[T]):
    """`what` names the objects in errors."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._known: WeakValueDictionary[int, T] = WeakValueDictionary()
        self._next = itertools.count(1)

    def number(self, thing: T) -> int:
        number = next(self._next)
        self._known[number] = thing
        return number

    def tensor(self, thing: T) -> Tensor:
        """The number as an int64 tensor `[]` on the CPU: torch.compile does not recompile when a tensor changes."""
        with torch.inference_mode(False):
            return torch.full((), self.number(thing), dtype=torch.int64, device="cpu")

    def of(self, number: int) -> T:
        found = self._known.get(number)
        if found is None:
            raise BatchError(
                f"a compiled function uses {self.what} that no longer exists",
                required=f"{self.what} that lives until the end of the backward pass",
                remedy="keep a reference to it",
            )
        return found


INDEXES: Handles[object] = Handles("an index")
OPERATORS: Handles[object] = Handles("an operator")
