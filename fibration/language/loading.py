"""Loads hierarchies: from `path.py`, `path.py:NAME`, a JSON file, a folder, or the name of a shipped one."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from textwrap import wrap
from types import ModuleType
from typing import Any

from fibration.errors import FibrationError, NoHierarchy, SpecError, located, suggest
from fibration.files import read_bytes
from fibration.language.apart import staying
from fibration.language.atoms import Attribute, Parameter, Stratum
from fibration.language.declared import WORDS, Policy
from fibration.language.hierarchy import Hierarchy


class IsFunction(SpecError):
    """A SPEC names a function, which is no declaration."""

    function: Callable[..., Any]


MAX_BYTES = 1_000_000
SHIPPED = re.compile(r"^(\w+) = (?:Hierarchy|load)\(", re.MULTILINE)  # how the shipped files declare hierarchies
_VARIABLES: dict[Hierarchy, dict[str, str]] = {}  # by hierarchy, the variable of every declared name


@functools.cache
def _shipped() -> dict[str, Path]:
    """Returns the file of every shipped hierarchy by its name. Names are unique over all files."""
    files = _below(Path(str(resources.files("fibration.specs"))))
    return dict(sorted((name, file) for file in files for name in SHIPPED.findall(file.read_text("utf-8"))))


def shipped() -> tuple[str, ...]:
    """Returns the names of the hierarchies that come with the package."""
    return tuple(_shipped())


def shipped_file(name: str) -> Path:
    """Returns the file that declares the shipped hierarchy `name`."""
    return _shipped()[name]


def load(spec: str | Path) -> Hierarchy:
    """Returns the hierarchy that `spec` names: `path.py`, `path.py:NAME`, a JSON file or a shipped name.

    NAME is the variable, or else the `name=` of the hierarchy.

    A Python file is imported, so its code runs. A JSON file is only read. Raises SpecError if `spec` has no hierarchy,
    or several and no NAME.
    """
    text = str(spec)
    if text in shipped():
        return _pick(importlib.import_module(f"fibration.specs.{shipped_file(text).stem}"), text, text)
    path_text, name = split(text)
    path = Path(path_text)
    if path.suffix == ".py" and path.is_file():
        return _pick(import_file(path), path_text, name)
    if path.suffix != ".json" or not path.is_file():
        raise _nowhere(text, path)
    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise SpecError(f"cannot read '{path}'", required="a file with one hierarchy", found=str(error)) from error
    with located(f"'{path}'"):
        return Hierarchy.model_validate_json(content)


def _nowhere(text: str, path: Path) -> SpecError:
    """Returns the error for a SPEC that names no hierarchy, with a suggestion."""
    problem, remedy = "it is neither a file nor a shipped name", ""
    otherwise = "\n    ".join(["shipped:", *wrap(", ".join(shipped()), 76)])
    if path.is_dir():
        names = [str(file) for file in sorted(_below(path))[:3]]
        problem = "it is a folder, and one hierarchy is asked for"
        remedy = f"name a file in it: {', '.join(names)}" if names else "it holds no .py or .json file"
    elif path.suffix in (".yaml", ".yml"):
        file = text.rpartition(":")[2]
        problem, remedy = "it is not said whose config it is", f"on the command line write trl:{file} or verl:{file}"
    elif path.is_file():
        problem, otherwise = "it is a file, and no .py or .json", "declare a hierarchy in one of those"
    elif path.suffix in (".py", ".json") or len(path.parts) > 1:
        problem, otherwise = "there is no such file", "a shipped one has no path: fibration show fiberpo"
    beside = [str(f) for f in sorted(path.parent.glob("*")) if f.suffix in (".py", ".json")]
    return SpecError(
        f"cannot load '{text}': {problem}",
        required="path.py, path.py:NAME, path.json, or a shipped name",
        remedy=remedy or suggest(text, (*shipped(), *beside)) or otherwise,
    )


def split(spec: str) -> tuple[str, str | None]:
    """Splits `path.py:NAME` into its file and its NAME. For anything else the NAME is None."""
    path, colon, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    return path, name if colon else None


def spec_files(spec: str | Path) -> list[str]:
    """Returns the .py and .json files of a folder and its subfolders, sorted by path. Any other path is itself a spec.

    Names that begin with `_` or `.` are left out. Raises NoHierarchy for a folder without such files.
    """
    path = Path(spec)
    if not path.is_dir():
        return [str(spec)]
    files = sorted(_below(path))
    if not files:
        raise NoHierarchy(
            f"the folder '{path}' holds no spec",
            required="at least one .py or .json file",
            remedy=f"name a file or another folder; fibration init {path} writes a first spec",
        )
    return [str(f) for f in files]


def _below(folder: Path) -> Iterator[Path]:
    """Yields every file that may declare a hierarchy. It does not follow links to folders, which may lead back."""
    for path in folder.iterdir():
        if path.name.startswith(("_", ".")):
            continue
        if path.is_dir():
            yield from () if path.is_symlink() else _below(path)
        elif path.suffix in (".py", ".json"):
            yield path


def hierarchies(spec: str | Path) -> dict[str, Hierarchy]:
    """Returns every hierarchy that one SPEC names, by its NAME in `path.py:NAME`; without a NAME by its own name.

    Raises NoHierarchy for a file that declares none, and SpecError for a file that cannot be used.
    """
    path = Path(spec)
    if path.suffix == ".py" and path.is_file():
        module = import_file(path)
        return _hierarchies(module) or {"": _pick(module, str(spec), None)}
    found = load(spec)
    return {split(str(spec))[1] or found.name: found}


def load_all(spec: str | Path) -> list[Hierarchy]:
    """Returns every hierarchy in a file, or in every .py and .json file of a folder."""
    return [h for name in spec_files(spec) for h in hierarchies(name).values()]


def import_file(path: Path, required: str = "a Python file that declares a Hierarchy") -> ModuleType:
    name = f"_fibration_spec_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with staying():
            found.loader.exec_module(module)
    except (FibrationError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit, and pytest's exception that skips a module
        origin = found.origin or str(path)
        lines = [n for frame, n in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == origin]
        line = f" (line {lines[-1]})" if lines else ""
        ends, alone = isinstance(error, SystemExit), f"run it by itself: python {path}"
        raise SpecError(
            f"'{path}' does not import",
            required=required,
            found=f"{type(error).__name__}{f': {error}' if str(error) else ''}{line}",
            remedy=f"end the process under if __name__ == '__main__': alone; {alone}" if ends else alone,
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _hierarchies(module: ModuleType) -> dict[str, Hierarchy]:
    found: dict[str, Hierarchy] = {}
    for name, value in vars(module).items():
        if isinstance(value, Hierarchy) and not name.startswith("_") and value not in found.values():
            found[name] = value
    _VARIABLES.update({h: _declared(module, h) for h in found.values()})
    return found


def _declared(module: ModuleType, h: Hierarchy) -> dict[str, str]:
    """Returns the variable of every parameter, attribute, stratum and policy of a module, by its declared name.

    A file may declare several parameters of one name: those that the hierarchy has.
    """
    kinds = (Parameter, Attribute, Stratum, Policy)
    values = {name: value for name, value in vars(module).items() if isinstance(value, kinds)}
    own = {name: v for name, v in values.items() if not isinstance(v, Parameter) or h.parameters.get(v.name, v) == v}
    found = {name: value.name for name, value in own.items()}
    return {declared: name for name, declared in found.items() if name == declared or declared not in found}


def variables_of(h: Hierarchy) -> dict[str, str]:
    """Returns the variables of the Python file that declared a hierarchy, by declared name; none for any other."""
    return _VARIABLES.get(h, {})


def as_in_file(text: str, variables: Mapping[str, str]) -> str:
    """Returns formulas with variables in the place of declared names.

    Text in quotes and arguments before `=` keep their names.
    """
    return WORDS.sub(lambda word: variables.get(word[0], word[0]), text)


def _pick(module: ModuleType, where: str, name: str | None) -> Hierarchy:
    found = _hierarchies(module)
    called = [h for h in found.values() if h.name == name]  # NAME is a variable, or the hierarchy's own name
    if name in found or len(called) == 1:
        return found[name] if name in found else called[0]
    if name is not None:
        known = {v: v if h.name == v else f"{v} (name={h.name!r})" for v, h in found.items()}
        remedy = suggest(name, [*found, *(h.name for h in found.values())])
        function = getattr(module, name, None)
        if callable(function):
            remedy = f"'{name}' is a function: fibration audit {where}:{name} says which loss it is"
        if called:
            remedy = f"name the variable: {where}:{next(v for v, h in found.items() if h.name == name)}"
        error = (IsFunction if callable(function) else SpecError)(
            f"'{where}' holds {len(called) or 'no'} {'hierarchies' if called else 'hierarchy'} called '{name}'",
            required=f"one of {', '.join(known.values())}" if found else f"{name} = Hierarchy(...) at the top level",
            found="" if found else "no hierarchy at all",
            remedy=remedy,
        )
        if isinstance(error, IsFunction) and callable(function):
            error.function = function
        raise error
    if len(found) != 1:
        raise (SpecError if found else NoHierarchy)(
            f"'{where}' holds {'no hierarchy' if not found else f'{len(found)} hierarchies'}",
            required="exactly one Hierarchy at the top level, or a name",
            found=", ".join(found),
            remedy=f"name one: {where}:{next(iter(found))}" if found else "declare one: my_loss = Hierarchy(...)",
        )
    return next(iter(found.values()))
