"""What the trainers' packages are to the reference, which is built without them: modules that have every name.

Sphinx's own mocks have neither signatures nor constants, which our subclasses ask for when they are imported.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = {"accelerate", "datasets", "omegaconf", "ray", "tensordict", "torchrl", "transformers", "trl", "verl"}


def function(*given: Any, **_: Any) -> Any:
    """A function, or a decorator with arguments or without."""
    return given[0] if given and callable(given[0]) else function


function.MAGIC_ATTR = {}  # type: ignore[attr-defined]  # verl's mark on what its controller calls


class AnyMethod(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return function


class AnyName(ModuleType):
    """Classes in CamelCase, constants in capitals, which are their own names, and functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = name if name.isupper() else function
        if name[0].isupper() and not name.isupper():
            value = AnyMethod(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, Finder, is_package=True) if name.partition(".")[0] in PACKAGES else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return AnyName(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing is in it but what is asked of it."""


def setup(app: Any) -> dict[str, bool]:
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
