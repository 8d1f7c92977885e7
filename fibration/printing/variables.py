"""The names of a printed module: what it imports, and a variable for each object that it declares."""

from __future__ import annotations

import builtins
import itertools
import keyword
from collections.abc import Iterable
from importlib import import_module

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Parameter, Stratum
from fibration.language.policies import Policy

Object = Stratum | Policy | Attribute | Parameter
PUBLIC: list[str] = import_module("fibration").__all__  # by name: the package imports the rooms
STANDARD = {"Fraction": "fractions"}  # names of Python's library, by their modules


class Variables:
    """Variables have the declared names; one that Python or `fibration` has taken gets an underscore at its end."""

    def __init__(self, hierarchy: str, objects: Iterable[Object]) -> None:
        self.hierarchy = hierarchy
        self.imports: set[str] = set()
        self.used: dict[Object, None] = {}  # in the order of their first use
        self._taken = {*PUBLIC, *STANDARD, *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
        self.result = self._declared(hierarchy)
        self._names = {value: self._declared(value.name) for value in dict.fromkeys(objects)}
        self.objects = tuple(self._names)  # all that may be declared, in the order in which it was given

    def _declared(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def of(self, value: Object) -> str:
        """Returns the variable of a declared object. The module then declares it."""
        self.used.setdefault(value)
        return self._names[value]

    def new(self, name: str) -> str:
        """Returns a variable for a formula: `name`, or with a number if it is taken."""
        numbered = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
        found = next(n for n in numbered if n not in self._taken)
        self._taken.add(found)
        return found

    def public(self, name: str) -> str:
        """Returns a name that the module then imports. Raises SpecError for a function that is not the library's."""
        if name not in PUBLIC and name not in STANDARD:
            raise SpecError(
                f"hierarchy '{self.hierarchy}' is made with '{name}(...)', which is no public name of fibration",
                required="gates, kernels, decompositions and objectives of fibration",
                remedy="write its formula: Gate(...), MarkovKernel(...), decomposition(...) or Objective(...)",
            )
        self.imports.add(name)
        return name
