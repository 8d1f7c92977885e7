"""A function by the name of its file, and the loss that `--as` names: a shipped one, a file, or a trainer's config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fibration.auditing.call import Audit, audit
from fibration.auditing.function import Function
from fibration.cli.compare import FROM_ADVANTAGES
from fibration.configs.findings import NOTE, Finding
from fibration.configs.specs import Spec, as_spec
from fibration.errors import AuditError, SpecError, an, suggest
from fibration.language.hierarchy import Hierarchy
from fibration.language.loading import import_file, split
from fibration.printing.law_table import without_law_notes


@dataclass(frozen=True)
class Expected:
    """A loss that a function should be. `findings`: about the config of `trainer`, and what it does around the loss."""

    loss: str | Hierarchy | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    trainer: str = ""


def expected(words: Sequence[str], function: Callable[..., Any], name: str) -> Expected:
    """The loss of a SPEC and the `KEY=VALUE` after it. The parameters of a config have its numbers.

    A function of advantages is compared with a config's loss of given advantages.
    """
    if not words:
        return Expected(None)
    spec = as_spec(words) if Spec(words[0]).trainer else Spec(words[0])
    if not spec.trainer:
        return Expected(spec.name, dict(map(_number, words[1:])))
    loss = spec.load()
    h, findings = loss.hierarchy, without_law_notes(loss)
    if h.advantages is not None and not Function(function, name).reads_rewards:
        findings = (Finding(NOTE, FROM_ADVANTAGES.format(h.name, h.advantages, name)), *findings)
        h = h.replace(advantages=None, groups=(), gives_up={})
    numbers = {n: p.default for n, p in h.parameters.items() if p.default is not None}
    return Expected(h, numbers, findings, spec.trainer)


def _number(word: str) -> tuple[str, float]:
    """A parameter's name and number, of `NAME=NUMBER`."""
    name, _, number = word.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise SpecError(
            f"{word!r} after the loss",
            required="NAME=NUMBER for each parameter that is given",
            remedy=f"write {name or 'epsilon_low'}=0.2, with the number that the function has",
        ) from None


def load_function(text: str) -> tuple[Callable[..., Any], str]:
    """The function of `FILE.py:FUNCTION`, and its file. Without a name, the file's only function."""
    file, name = split(text)
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise AuditError(
            f"cannot load '{text}': there is no Python file '{file}'",
            required="FILE.py:FUNCTION",
            remedy="name the file from this folder, such as losses/my.py:loss",
        )
    module = import_file(path, "a Python file with a loss function")
    own = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    found = getattr(module, name, None) if name else next(iter(own.values()), None) if len(own) == 1 else None
    if not callable(found):
        what = f"'{file}' has no function '{name}'" if name else f"'{file}' has {len(own)} functions"
        raise AuditError(
            what if found is None else f"'{name}' in '{file}' is {an(type(found).__name__)}, and no function",
            required="FILE.py:FUNCTION",
            found=f"functions {', '.join(own)}" if own else "no function",
            remedy=suggest(name or "", own) or (f"name one: {file}:{next(iter(own))}" if own else ""),
        )
    return found, file


def audited(
    function: Callable[..., Any], like: Expected, name: str, parameters: Mapping[str, Any] | None = None
) -> Audit:
    """The audit of a function. `parameters` come before a config's numbers."""
    given = {**like.parameters, **(parameters or {})}
    return audit(function, like.loss, parameters=given or None, name=name)
