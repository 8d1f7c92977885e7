"""Loads hierarchies: from `path.py`, `path.py:NAME`, a JSON file, a folder, or the name of a shipped one.

`each` runs code of users, a spec or an audited function, in a process of its own under a time limit. Such code is
Python: it may end its process, print, fork, or never return. So the command line runs it in a fork, which sends back
what it found. The parent process alone writes reports and exits. This is no sandbox: it protects authors from
accidents.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import importlib.util
import os
import pickle
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import resources
from multiprocessing.connection import Pipe
from multiprocessing.context import ForkProcess
from pathlib import Path
from textwrap import wrap
from threading import Thread, get_ident
from time import monotonic
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from fibration.errors import FibrationError, NoHierarchy, SpecError, located, suggest
from fibration.files import read_bytes
from fibration.language.atoms import Attribute, Parameter, Stratum
from fibration.language.declared import WORDS, Policy
from fibration.language.hierarchy import Hierarchy

T = TypeVar("T")
R = TypeVar("R")
POLL = 0.05  # seconds between two looks whether the process has ended; results and output arrive at once
PATIENCE = 2.0  # seconds for exit handlers after the last result
SHOWN = 100_000  # bytes of what it prints that are shown
DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG of Linux
# The command line turns this on. Elsewhere the code runs in the caller's process: threads make a fork unsafe, and a
# notebook's functions print where the notebook shows it.
in_processes = False
STOPPED = (signal.SIGTERM, signal.SIGHUP)
_end = os._exit  # `staying` replaces the name


def turn_on() -> None:
    """Run code in processes from now on. A signal that ends this process ends them first, as Ctrl-C does."""
    global in_processes
    in_processes = True
    for number in STOPPED:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


@contextmanager
def staying() -> Iterator[None]:
    """Makes `os._exit` raise SystemExit inside the block, but not in other threads or forked processes.

    A process that the block forked ends where the block ends: what follows is done once.
    """
    end, process, here = os._exit, os.getpid(), {(os.getpid(), get_ident())}

    def stay(status: int) -> NoReturn:
        if (os.getpid(), get_ident()) in here:
            raise SystemExit(f"os._exit({status})")
        end(status)

    os._exit = stay
    try:
        yield
    finally:
        if os.getpid() != process:
            _end(1)
        os._exit = end
        here.clear()  # the block's code may have kept `stay`


def each(
    work: Callable[[T], R],
    items: Sequence[T],
    seconds: float,
    failure: type[FibrationError],
    remedy: str,
    runs_code: bool = True,
) -> Iterator[R | FibrationError]:
    """Yields the result of `work(item)`, or its FibrationError, for each item in order.

    Where `in_processes` is on and the work `runs_code`, one process works on the items. If it ends, or takes more than
    `seconds` for an item, that item has a `failure`, and another process goes on with the next. Results have to be
    picklable. What the work prints goes to stderr, after `| ` that of a process. `remedy`: for code that does not end.
    """
    left = list(items)
    found: R | FibrationError
    while left and not (runs_code and in_processes):
        try:
            with redirect_stdout(sys.stderr):
                found = work(left.pop(0))
        except FibrationError as error:
            found = error
        yield found
    while left:
        process = _Process(work, left, failure)
        try:
            while left and not process.is_over:
                found = process.result(f"'{left[0]}'", seconds, remedy)
                left.pop(0)
                yield found
        finally:
            process.end(0 if left else PATIENCE)


class _Process(ForkProcess):
    """Works on items, and sends each result. It leads a session: all that it starts can be ended."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any], failure: type[FibrationError]) -> None:
        super().__init__()
        self._work, self._items, self._failure = work, items, failure
        self._results, self._sends = Pipe(duplex=False)
        output, self._prints = os.pipe()
        self.is_over = False
        with warnings.catch_warnings():  # of threads, by Python and by JAX: the progress line has one
            warnings.simplefilter("ignore")
            self.start()
        self._sends.close()
        os.close(self._prints)
        self._shows = Thread(target=_show, args=(output,), daemon=True)
        self._shows.start()

    def run(self) -> None:
        """Send the result of every item. Nothing that the caller has begun goes on here."""
        process, prints = os.getpid(), self._prints
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
        for number in (*STOPPED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (prints, 1), (prints, 2)):
            os.dup2(source, target)
        # Streams and exit handlers of its own: the caller's may be locked by a thread, or belong to a progress line.
        for name in ("stdout", "stderr"):
            stream = open(prints, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        atexit._clear()
        try:
            for item in self._items:
                try:
                    found = self._work(item)
                except FibrationError as error:
                    found = error
                except KeyboardInterrupt:  # of the code itself: this session has no terminal
                    found = self._failure(f"'{item}' raises KeyboardInterrupt", required="code that returns")
                result = pickle.dumps(found)
                if os.getpid() != process:
                    return
                self._sends.send_bytes(result)
        finally:
            atexit._run_exitfuncs()

    def result(self, name: str, seconds: float, remedy: str) -> Any:
        """The next result; a failure if it takes more than `seconds`, or if the process ends, and then it is over."""
        until = monotonic() + seconds
        while not self._results.poll(POLL) and self.is_alive():
            if monotonic() > until:
                self.end(0)
                what = f"{name} did not end within {seconds:g} s"
                return self._failure(what, required="code that ends", remedy=remedy)
        try:
            if self._results.poll():
                return pickle.loads(self._results.recv_bytes())
        except (EOFError, OSError):  # of a pipe whose other end is closed
            pass
        except Exception as error:  # a class of the spec's own
            what = f"{type(error).__name__}: {error}"
            return self._failure(f"{name} declares what cannot be read outside its file", found=what)
        self.end(PATIENCE)
        return self._failure(
            f"{name} ended the process that runs it, before there was a result",
            required="code that returns",
            found=_how(self.exitcode or 0),
            remedy="leave out what ends, replaces or kills the process",
        )

    def end(self, patience: float) -> None:
        """End the process, at the latest after `patience` seconds, and all that it started."""
        until = monotonic() + patience
        while self.is_alive() and monotonic() < until:
            self.join(POLL)  # returns late if something that the code forked lives on
        for kill in (os.killpg, os.kill):
            if self.pid and not self.is_over:
                with suppress(OSError):
                    kill(self.pid, signal.SIGKILL)
        self.join()
        self._shows.join(PATIENCE)  # not for ever: a process of another session may still print
        self.is_over = True


def _show(output: int) -> None:
    """Shows what a process prints, line by line, up to a limit."""
    left = SHOWN
    with open(output, encoding="utf-8", errors="backslashreplace", newline="\n") as printed:
        while line := printed.readline(SHOWN):
            if left > 0:
                print("|", line[:left].removesuffix("\n"), file=sys.stderr)
            left -= len(line)
            if left <= 0 < left + len(line):
                print(f"| ... more than {SHOWN} bytes are printed", file=sys.stderr)


def _how(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}, as after os._exit({code})"
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    return f"{name}, as when memory runs out" if -code == signal.SIGKILL else name


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
