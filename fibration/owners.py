"""Checks that only this user or root can have written a file, before the cache runs or trusts it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Doubt:
    """Who else may have written a file or folder, and what this user can do about it."""

    found: str
    remedy: str = ""  # the beginning of a sentence, or ""


def doubt_of(place: Path) -> Doubt | None:
    """Returns why another user may have written into a folder; None if only this user and root can, as ssh requires.

    - This user or root owns all parts of the path, and of the targets of links on it. Nobody else can write them.
    - A folder above `place` may be like `/tmp`: others can write it, but only owners rename in it.
    - The check begins at the user's home: whoever can replace the home needs no cache.
    - A part that does not exist yet is no reason for doubt. On systems without owners, nothing is.
    - The check goes down the path, and each part is known to stay before the next: nobody else can change the answer.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        place.stat()  # circular links raise OSError
    return _on_the_way(place.absolute(), _homes(), last=True) if hasattr(os, "getuid") else None


def _homes() -> tuple[Path, ...]:
    try:
        return Path.home(), Path.home().resolve()
    except RuntimeError:
        return ()


def _on_the_way(place: Path, homes: tuple[Path, ...], last: bool) -> Doubt | None:
    parts = (*reversed(place.parents), place)
    begin = max((parts.index(home) for home in homes if home in parts), default=0)
    for part in parts[begin:]:
        end = last and part == place
        try:
            info = part.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(info.st_mode):
            doubt = _foreign(part, info) or _on_the_way(part.parent / part.readlink(), homes, end)
        else:
            doubt = doubt_of_one(part, info, sticky=not end)
        if doubt:
            return doubt
    return None


def doubt_of_one(part: Path, info: os.stat_result, sticky: bool = False) -> Doubt | None:
    """The doubt about one file or folder; a link is one. `sticky`: others may write there if only owners rename."""
    if not hasattr(os, "getuid"):
        return None
    if stat.S_ISLNK(info.st_mode):
        return Doubt(f"'{part}' is a link")
    writers = info.st_mode & OTHERS_MAY_WRITE
    fine = (sticky and info.st_mode & stat.S_ISVTX) or (writers == stat.S_IWGRP and _is_private(info.st_gid))
    if fine or not writers or _foreign(part, info):
        return _foreign(part, info)
    who = "everybody" if writers & stat.S_IWOTH else f"the group {_name_of_group(info.st_gid)}"
    remedy = f"chmod go-w '{part}', or " if info.st_uid == os.getuid() else ""
    return Doubt(f"'{part}' can be written by {who} (mode {stat.S_IMODE(info.st_mode):04o})", remedy)


def _foreign(part: Path, info: os.stat_result) -> Doubt | None:
    if info.st_uid in (0, os.getuid()):
        return None
    return Doubt(f"'{part}' belongs to another user, {name_of_user(info.st_uid)}")


def _is_private(group: int) -> bool:
    """Returns whether a group holds this user alone, as on systems with a default umask of 002. False for root."""
    import grp
    import pwd

    try:
        user, its = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    alone = {*its.gr_mem} <= {user.pw_name}
    return user.pw_uid != 0 and user.pw_gid == group and user.pw_name == its.gr_name and alone


def name_of_user(user: int) -> str:
    import pwd

    with suppress(KeyError):
        return f"{pwd.getpwuid(user).pw_name} ({user})"
    return str(user)


def _name_of_group(group: int) -> str:
    import grp

    with suppress(KeyError):
        return f"{grp.getgrgid(group).gr_name} ({group})"
    return str(group)
