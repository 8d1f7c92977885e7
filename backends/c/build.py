"""Builds C source into a shared library with the system's compiler. The cache key has all that affects the result."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fibration.backends.c.calling import FLAGS, SHARED, processor, target
from fibration.backends.c.emit import shared
from fibration.cache import entry
from fibration.errors import BackendError

LIBRARY, SOURCE = "kernel.so", "kernel.c"


def compiler() -> tuple[str, ...]:
    """The C compiler and its own arguments: `CC`, or the first of cc, gcc and clang. Raises BackendError if none."""
    chosen = os.environ.get("CC", "").strip()
    try:
        words = shlex.split(chosen)
    except ValueError as error:
        raise BackendError(
            f"the environment variable CC cannot be read: CC={chosen}",
            required="a compiler and its arguments, quoted as in a shell",
            found=str(error),
            remedy="close the quotation, as in CC='gcc -O3', or unset CC",
        ) from None
    for name, *arguments in [words] if words else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(name)
        if found:
            return (found, *arguments)
    raise BackendError(
        f"there is no C compiler: CC={chosen}" if chosen else "there is no C compiler",
        required="cc, gcc or clang on the PATH, or CC",
        remedy="install one, or choose backend='torch'",
    )


def build(source: str, defines: Mapping[str, str]) -> Path:
    """The path of the shared library of `source`, compiled for this machine unless `CC` names another.

    Raises BackendError with the compiler's message.
    """
    cc = compiler()
    flags = [*FLAGS, *target(cc), *(f"-D{k}={v}" for k, v in sorted(defines.items()))]
    parts = [source, shared(), *flags, *cc, version(cc), processor()]
    key = "c-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def make(workshop: Path) -> None:
        (workshop / SOURCE).write_text(source)
        (workshop / SHARED).write_text(shared())
        command = [*cc, *flags, "-o", str(workshop / LIBRARY), str(workshop / SOURCE), "-lm"]
        done = _run(command)
        if done.returncode or not (workshop / LIBRARY).exists():
            kept = workshop.parents[1] / f"failed-{key}.c"  # beside the entries
            kept.write_text(source)
            raise BackendError(
                f"the C compiler failed on {kept}",
                required=f"{' '.join([*cc, *flags])} to succeed",
                found="\n            ".join(
                    done.stderr.replace(str(workshop / SOURCE), kept.name).strip().splitlines()[:20]
                )
                or f"exit code {done.returncode}",
                remedy="set CC to another compiler, or choose backend='torch'",
            )

    return entry(key, make) / LIBRARY


@cache
def version(cc: tuple[str, ...]) -> str:
    """The output of a compiler's `--version`."""
    return _run([*cc, "--version"]).stdout


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise BackendError(
            f"the C compiler {command[0]} cannot be run",
            required="a program",
            found=error.strerror or str(error),
            remedy="set CC to another compiler, or choose backend='torch'",
        ) from error
