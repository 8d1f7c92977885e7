"""Escapes text from outside for each stream and format that shows it.

Text from outside: names of files, keys and values of JSON and YAML, reasons for giving up a law, messages of
exceptions, the output of code that is imported. None of it may control a terminal, begin a command of a CI system, end
a line that holds it, or break a format. Escaped text is not changed by escaping it again.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

# A runner of GitHub trims a line before it looks for `::command::`. It finds `##[command]` anywhere in a line, and
# others find `##vso[command]`. A backslash goes before the character that would complete the command.
_OF_BRACKETS = r"(##(?:vso|teamcity)?)"
_COMMANDS = (re.compile(r"^([^\S\n]*:)(?=:)", re.MULTILINE), re.compile(rf"{_OF_BRACKETS}(?=\[)", re.IGNORECASE))
_MARKUP = re.compile(r"([\\`*\[\]<>|#&~$]|(?<!\w)_|_(?!\w))")
_CODE = re.compile(r"(\x1b\[[?\d;]*[mAKhl]|\r)")  # colours, and movements of rich's progress line


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def visible(text: str) -> str:
    """Returns a text whose control characters, marks of direction and lone surrogates are escapes of Python."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def escaped(text: str, after: str = "") -> str:
    """Returns lines that control no terminal and begin no command of a CI system. `after`: what their line begins with.

    Newlines and tabs stay.
    """
    text = after + visible(text)
    for command in _COMMANDS:
        text = command.sub(r"\1\\", text)
    return text[len(after) :]


def one_line(text: object) -> str:
    """Returns an escaped text in which newlines and tabs are escapes too."""
    return escaped(str(text).replace("\n", "\\n").replace("\t", "\\t"))


def plain_line(text: str) -> str:
    """Returns an escaped text on one line: all blanks and newlines become single blanks."""
    return escaped(" ".join(text.split()))


def escaped_literals(text: str) -> str:
    """Returns JSON, or source code of Python, whose literals of text are escaped. They have the same values."""
    shown = "".join(c if _is_shown(c) else json.dumps(c)[1:-1] for c in text)
    return re.sub(rf"{_OF_BRACKETS}\[", r"\1\\u005b", shown, flags=re.IGNORECASE)


def json_text(value: object) -> str:
    """Returns JSON of a value, indented and escaped."""
    return escaped_literals(json.dumps(value, indent=2, ensure_ascii=False))


def markdown_text(text: str, keeps_code: bool = False) -> str:
    """Returns one line of text with Markdown and HTML markup escaped. An underscore inside a word is no markup.

    `keeps_code`: what stands between backticks stays code, in which nothing else is markup.
    """
    parts = re.split("(`[^`]*`)", plain_line(text)) if keeps_code else [plain_line(text)]
    return "".join(part if i % 2 else _MARKUP.sub(r"\\\1", part) for i, part in enumerate(parts))


def annotation(level: str, message: str, **properties: str) -> str:
    """Returns a workflow command of GitHub: `::error file=…,title=…::message`. Empty properties are left out."""
    given = ((name, _data(value).replace(":", "%3A").replace(",", "%2C")) for name, value in properties.items())
    return f"::{level} {','.join(f'{name}={value}' for name, value in given if value)}::{_data(message)}"


def _data(text: str) -> str:
    """Escapes text by GitHub's rule for the data of workflow commands."""
    return escaped(text).replace("%", "%25").replace("\n", "%0A")


class Guard:
    """A stream of text that escapes what is written to it. Everything else it takes from the stream that it guards.

    `unguarded` is that stream: for text that is escaped already, and for bytes. `styled` is a guard that lets colours
    pass, for rich.
    """

    def __init__(self, unguarded: Any, is_styled: bool = False) -> None:
        self.unguarded, self._is_styled, self._line = unguarded, is_styled, ""
        self.buffer = _GuardedBytes(self)  # some writers look for it
        self.styled: Guard = self if is_styled else Guard(unguarded, is_styled=True)

    def write(self, text: str) -> int:
        parts = _CODE.split(text) if self._is_styled else [text]
        if text.startswith("\r") and self.unguarded.isatty():
            parts = ["", "\r", text[1:]]  # a progress bar
        for i, part in enumerate(parts):
            shown = part if i % 2 else escaped(part, after=self._line)
            self.unguarded.write(shown)
            line = (self._line + shown * (i % 2 == 0)).rpartition("\n")[2].lstrip()
            self._line = line if len(line) < 99 else f"x{line[-98:]}"
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


class _GuardedBytes(io.RawIOBase):
    def __init__(self, guard: Guard) -> None:
        self._guard, self._decode = guard, codecs.getincrementaldecoder("utf-8")("replace").decode

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._guard.write(self._decode(bytes(data)))
        return len(data)

    def flush(self) -> None:
        self._guard.unguarded.flush()


def guarded(stream: Any) -> Any:
    """Returns a guard of a stream; None if there is no stream."""
    return stream if stream is None or isinstance(stream, Guard) else Guard(stream)


def unguarded(stream: Any) -> Any:
    return getattr(stream, "unguarded", stream)


def styled(stream: Any) -> Any:
    return getattr(stream, "styled", stream)
