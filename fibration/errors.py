"""The exceptions of the library, one class per kind of failure, and helpers for their messages.

Every message names the user's object, what is required, what was found and the fix, in that order.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from fibration.escaping import escaped


class FibrationError(Exception):
    """Base of everything this library raises on purpose."""

    def __init__(self, what: str, *, required: str = "", found: str = "", so_too: str = "", remedy: str = "") -> None:
        self.what, self.required, self.found, self.so_too, self.remedy = map(
            _part, (what, required, found, so_too, remedy)
        )
        parts = {"required": self.required, "found": self.found, "so too": self.so_too, "fix": self.remedy}
        titles = (f"  {title + ':':<9} {text}" for title, text in parts.items() if text)
        super().__init__("\n".join([self.what, *titles]))

    def __reduce__(self) -> Any:
        parts = {"required": self.required, "found": self.found, "so_too": self.so_too, "remedy": self.remedy}
        return partial(type(self), **parts), (self.what,)


LONGEST = 1_000  # characters of a line of a message: what it quotes may be longer


def _part(text: str) -> str:
    """Escapes a part of a message, and cuts long lines. A newline stays if four blanks follow, as in our own texts."""
    lines = escaped(re.sub(r"\n(?! {4})", r"\\n", str(text))).split("\n")
    return "\n".join(line if len(line) <= LONGEST else _cut(line) for line in lines)


def _cut(line: str) -> str:
    beginning = line[: LONGEST - 50]  # so that the result is not cut again
    return f"{beginning}... and {len(line) - len(beginning)} more characters"


class _Short(reprlib.Repr):
    """`repr` of the beginning of a value: of 30 elements, 4 levels and 100 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 30
        self.maxstring = self.maxlong = self.maxother = 1_000

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[:100])

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:  # in its order, not sorted
        if level <= 0:
            return "{...}"
        pairs = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return f"{{{', '.join(pairs)}}}"


def shown(value: object) -> str:
    """Returns a value's `repr` for a message, at most 80 characters."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python does not print integers of thousands of digits
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = _Short().repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits inside
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def declare(function: str, given: object, example: str) -> str:
    """Returns how to declare a stratum or policy that was given as text, or as a tuple of one."""
    if isinstance(given, tuple) and len(given) == 1:
        return f"unpack it: ({given[0]},) = {function}('{given[0]}')"
    name = given if isinstance(given, str) and given.isidentifier() else example
    return f"declare it: ({name},) = {function}('{name}')"


_VOWEL = re.compile("(?!uni|us|uti|eu|one|once)[aeiou]|hour", re.IGNORECASE)


def an(name: object) -> str:
    """`a token`, `an expert`, `a user`: a name with its article."""
    return f"{'an' if _VOWEL.match(str(name)) else 'a'} {name}"


def listed(words: Iterable[object]) -> str:
    """`a, b and c`."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns `did you mean 'grpo' or 'gspo'?`, the closest known words, or "". Ignores case; reads `-` as `_`.

    A word with the same letters in another order comes before all others: `gpro` is `grpo`.
    """
    written = {name.casefold(): name for name in known}
    typed = word.casefold().replace("-", "_")
    swapped = [name for name in written if sorted(name) == sorted(typed)]
    close = swapped or difflib.get_close_matches(typed, written, 2)
    likeness = [difflib.SequenceMatcher(None, typed, name).ratio() for name in close]
    alike = [f"'{written[name]}'" for name, near in zip(close, likeness, strict=True) if near > likeness[0] - 0.05]
    return f"did you mean {' or '.join(alike)}?" if alike else ""


_DIGITS = re.compile(r"\d+")


def looks_like(word: str, other: str) -> bool:
    """Returns whether one word may be a typo of the other. `math1` and `math2`, equal up to digits, are no typo."""
    if word != other and _DIGITS.sub("0", word) == _DIGITS.sub("0", other):
        return False
    return bool(difflib.get_close_matches(word.casefold(), [other.casefold()], cutoff=0.8))


@contextmanager
def located(where: str) -> Iterator[None]:
    """Puts `where` at the beginning of errors raised inside, unless they begin with it already."""
    try:
        yield
    except FibrationError as error:
        if error.what.startswith(where):
            raise
        parts = {"required": error.required, "found": error.found, "so_too": error.so_too, "remedy": error.remedy}
        raise type(error)(f"{where}: {error.what}", **parts) from None


class SpecError(FibrationError):
    """A declaration that cannot be read or does not fit together; raised while it is built or loaded."""


class NoHierarchy(SpecError):
    """A file or folder that can be read but declares no hierarchy; `fibration verify --if-any` skips it."""


class LawError(FibrationError):
    """A hierarchy breaks a law, or a law could not be decided. `report` is the whole report."""

    report: Any = None


class ParameterError(FibrationError):
    """A parameter's value is unknown, missing, out of bounds, or of the wrong shape."""


class HierarchyIndexError(FibrationError):
    """Masks, offsets or labels do not describe a hierarchy of the declared form."""


class BatchError(FibrationError):
    """Log-probs, advantages or an index do not fit each other, or hold a value that has no meaning."""


class RanksError(FibrationError):
    """Ranks that share one batch made different calls, or one of them failed, ended or could not be reached."""


class TrainerError(FibrationError):
    """With this trainer, its options or its data, gradients would not be those of the hierarchy."""


class AuditError(FibrationError):
    """A function cannot be audited: its arguments, its result, or what it does with them."""


class BackendError(FibrationError):
    """A backend is unknown, not available, or lacks an operator."""


class IRError(FibrationError):
    """An intermediate program breaks an invariant of the IR: a defect of this library, not of a spec."""


class RolloutsError(FibrationError):
    """A file is damaged, or is no file of recorded rollouts."""


class FigureError(FibrationError):
    """A figure cannot be drawn: its name or format is unknown, or it has no picture for the hierarchy."""


class MissingDependency(FibrationError):
    """An optional package is needed and not installed."""


class PrecisionWarning(UserWarning):
    """Log-probs are rounded so coarsely that a gate acts on the rounding."""
