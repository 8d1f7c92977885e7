"""A function by the name of its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fibration.errors import AuditError, an, suggest
from fibration.language.loading import import_file, split


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
