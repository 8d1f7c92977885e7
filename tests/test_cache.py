"""The cache runs only code that this user or root wrote, and refuses any other with a message."""

import ctypes
import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import a_groups, given_away

from fibration import BackendError, cache
from fibration.backends.c import build


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The cache folder of this test, two levels below its temporary folder."""
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path / "mine" / "cache"))
    return tmp_path / "mine" / "cache"


def written(text="ours"):
    """The text in the entry `key`. A missing entry is made with `text`."""
    return (cache.entry("key", lambda folder: (folder / cache.NOTE).write_text(text) and None) / cache.NOTE).read_text()


def planted(home):
    """The entry, with changed contents and the digest that fits them."""
    assert written() == "ours"
    entry = home / "key"
    (entry / cache.NOTE).write_text("theirs")
    (entry / cache.DIGEST).write_text(cache._digest(entry))
    return entry


def linked(path):
    """Move a file or folder elsewhere and put a link to it in its place."""
    path.symlink_to(path.rename(path.with_name("elsewhere")))


WAYS = {
    "the folder is everybody's": (lambda e, patch: e.parent.chmod(0o777), "cache' can be written by everybody"),
    "the folder is everybody's, and sticky": (lambda e, patch: e.parent.chmod(0o1777), "(mode 1777)"),
    "the folder is a group's": (lambda e, patch: a_groups(e.parent, 0o775, patch), "can be written by the group"),
    "the folder is somebody's": (lambda e, patch: given_away(e.parent, patch), "belongs to another user"),
    "what it lies in is everybody's": (lambda e, patch: e.parents[1].chmod(0o777), "mine' can be written by everybody"),
    "what it lies in is somebody's": (lambda e, patch: given_away(e.parents[1], patch), "mine' belongs to another"),
    "the entry is everybody's": (lambda e, patch: e.chmod(0o777), "key' can be written by everybody"),
    "the entry is somebody's": (lambda e, patch: given_away(e, patch), "belongs to another user"),
    "the entry is a link": (lambda e, patch: linked(e), "key' is a link"),
    "the file is everybody's": (lambda e, patch: (e / cache.NOTE).chmod(0o666), "note.json' can be written by everybody"),
    "the file is a group's": (lambda e, patch: a_groups(e / cache.NOTE, 0o664, patch), "can be written by the group"),
    "the file is somebody's": (lambda e, patch: given_away(e / cache.NOTE, patch), "belongs to another user"),
    "the file is a link": (lambda e, patch: linked(e / cache.NOTE), "note.json' is a link"),
    "the digest is everybody's": (lambda e, patch: (e / cache.DIGEST).chmod(0o666), "can be written by everybody"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_cache_that_others_could_write_is_refused(way, home, monkeypatch):
    entry, (change, said) = planted(home), WAYS[way]
    change(entry, monkeypatch)
    with pytest.raises(BackendError) as error:
        written()
    assert said in str(error.value)
    in_entry = way.startswith(("the entry", "the file", "the digest"))
    assert (f"rm -r '{entry}'" if in_entry else "set FIBRATION_CACHE to another folder") in str(error.value)
    mode_is_ours = not in_entry and "somebody" not in way
    assert ("chmod go-w" in str(error.value)) == mode_is_ours


@pytest.mark.parametrize("way", WAYS)
def test_a_note_that_others_could_write_is_neither_read_nor_written(way, home, monkeypatch):
    cache.keep("key", "ours")
    assert cache.recall("key") == "ours"
    WAYS[way][0](home / cache.NOTES / "key", monkeypatch)
    assert cache.recall("key") is None
    cache.keep("other", "ours")
    assert (cache.recall("other") is None) == way.startswith(("the folder", "what it lies in"))


@pytest.mark.parametrize("safe", [True, False])
def test_a_symbolic_link_is_as_safe_as_the_folders_on_its_path(safe, tmp_path, monkeypatch):
    for name in ("middle", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "middle" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "link").symlink_to("middle/link")
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path / "link" / "cache"))
    planted(tmp_path / "link" / "cache")
    if safe:
        assert written() == "theirs"
        return
    (tmp_path / "middle").chmod(0o777)
    with pytest.raises(BackendError, match="middle' can be written by everybody"):
        written()


def test_an_entry_of_this_user_with_the_right_digest_is_used(home):
    """Digests protect against accidents alone: a process of this user can write digests too."""
    planted(home)
    assert written() == "theirs"
    (home / "key" / cache.NOTE).write_text("damaged")
    assert written() == "ours"


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_a_planted_library_does_not_run(home):
    mine, theirs = (build.build("int answer(void) { return N; }", {"N": n}) for n in "12")
    for file in theirs.parent.iterdir():
        shutil.copy(file, mine.parent / file.name)
    assert ctypes.CDLL(str(mine)).answer() == 2  # the planted library would run
    home.chmod(0o777)
    with pytest.raises(BackendError, match="is not safe, and its files are run"):
        build.build("int answer(void) { return N; }", {"N": "1"})


@pytest.mark.parametrize("way", ["", "0", "\xff", "a FIFO", "a folder"])
def test_an_entry_with_a_damaged_digest_is_built_again(way, home):
    digest = planted(home) / cache.DIGEST
    digest.unlink()
    if way.startswith("a "):
        os.mkfifo(digest) if way == "a FIFO" else digest.mkdir()
    else:
        digest.write_text(way, "latin-1")
    assert written("anew") == "anew"
    assert {p.name for p in home.iterdir()} == {"key"}


DAMAGE = {
    "deep": lambda note: note.write_text("[" * 100_000),
    "cut short": lambda note: note.write_bytes(note.read_bytes()[:-4]),
    "empty": lambda note: note.write_bytes(b""),
    "another letter": lambda note: note.write_text('"0urs"'),
    "no text": lambda note: note.write_bytes(b"\xff\xfe\x00"),
    "a folder": lambda note: (note.unlink(), note.mkdir()),
    "a FIFO": lambda note: (note.unlink(), os.mkfifo(note)),
    "no digest": lambda note: note.with_name(cache.DIGEST).unlink(),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_a_damaged_note_is_no_note(harm, home):
    cache.keep("key", "ours")
    note = home / cache.NOTES / "key" / cache.NOTE
    DAMAGE[harm](note)
    if harm == "deep":  # by a process of this user, which can write digests too
        note.with_name(cache.DIGEST).write_text(cache._digest(note.parent))
    assert cache.recall("key") is None
    if harm != "deep":
        cache.keep("key", "anew")
        assert cache.recall("key") == "anew"


def no_space(*_, **__):
    raise OSError(28, "No space left on device")


CANNOT = {
    "no room to begin": lambda patch: patch.setattr(cache.tempfile, "mkdtemp", no_space),
    "no room": lambda patch: patch.setattr(cache, "_digest", no_space),
    "no rename": lambda patch: patch.setattr(os, "rename", no_space),
    "no home": lambda patch: patch.setenv("FIBRATION_CACHE", "~nobody-of-this-name/cache"),
    "no name": lambda patch: patch.setattr(cache, "folder", lambda: Path("a\0b")),
}


@pytest.mark.parametrize("way", CANNOT)
def test_a_cache_that_cannot_be_used_has_no_notes_and_raises_no_error(way, home, monkeypatch):
    CANNOT[way](monkeypatch)
    cache.keep("key", 1)
    assert cache.recall("key") is None
    assert not list(home.rglob("*.*"))


BUILDER = """
import sys, time
from fibration import cache
def make(folder):
    (folder / "file").write_text("half")
    print("building", flush=True)
    sys.stdin.read()
cache.entry("other", make)
"""


def test_folders_of_killed_processes_are_removed_a_day_later_and_those_of_living_ones_are_not(home):
    def builds():
        before = {*home.iterdir()}
        process = subprocess.Popen([sys.executable, "-c", BUILDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"building\n"
        (work,) = {*home.iterdir()} - before
        return process, work

    (home / ".ssh").mkdir(parents=True)
    (home / (cache.WORK + "link")).symlink_to(home / ".ssh")
    (killed, abandoned), (living, work) = builds(), builds()
    killed.kill()
    killed.communicate()
    for old in (abandoned, home / (cache.WORK + "link")):
        os.utime(old, (time.time() - 25 * 3600,) * 2, follow_symlinks=False)
    assert written() == "ours"
    assert work.is_dir() and not abandoned.exists()
    living.communicate()
    assert living.returncode == 0
    assert {p.name for p in home.iterdir()} >= {"key", "other", ".ssh"} and not work.exists()


def test_a_sticky_folder_on_the_path_is_safe(home):
    planted(home)
    home.parent.chmod(0o1777)
    assert written() == "theirs"


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_only_this_user_may_write_whatever_the_umask(umask, home):
    before = os.umask(umask)
    try:
        written()
    finally:
        os.umask(before)
    made = [home.parent, home, *home.rglob("*")]
    assert len(made) == 5 and stat.S_IMODE(home.stat().st_mode) == 0o700
    for path in made:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, path
    assert written("anew") == "ours"


# ---------------------------------------------------------------- a group of one


ALICE = {"uid": 4242, "primary": 77, "name": "alice", "group": "alice", "members": []}
GROUPS = {
    "alone in it": ({}, True),
    "listed in it": ({"members": ["alice"]}, True),
    "beside another": ({"members": ["alice", "bob"]}, False),
    "of another name": ({"group": "staff"}, False),
    "not the primary one": ({"primary": 78}, False),
    "of root, which unprivileged users of containers share": ({"uid": 0, "name": "root", "group": "root"}, False),
}


@pytest.mark.parametrize("which", GROUPS)
def test_a_group_of_this_user_alone_may_write(which, home, monkeypatch):
    """A umask of 002 is the default on systems where every user has a group of one."""
    entry = planted(home)
    change, fine = GROUPS[which]
    who = SimpleNamespace(**ALICE | change)
    real = os.lstat(home)
    for path in (home, entry, entry / cache.NOTE):
        path.chmod(0o775)
    user = SimpleNamespace(pw_uid=who.uid, pw_gid=real.st_gid + who.primary - 77, pw_name=who.name)
    group = grp.struct_group((who.group, "x", real.st_gid, who.members))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    if fine:
        assert written() == "theirs"
        (entry / cache.NOTE).chmod(0o666)
    with pytest.raises(BackendError, match="everybody" if fine else f"the group {who.group}"):
        written()


# ---------------------------------------------------------------- the user's own folder


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The home of a user who has chosen no folder."""
    for name in ("FIBRATION_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "users" / "me"))
    (tmp_path / "users" / "me").mkdir(parents=True)
    monkeypatch.setattr(cache, "_temporary", lambda: tmp_path / "temporary")
    return tmp_path / "users" / "me"


def test_folders_above_the_home_are_not_checked(own, monkeypatch):
    """Whoever can replace the home needs no cache, and in containers the home may lie in anybody's folder."""
    own.parent.chmod(0o777)
    assert written() == "ours"
    assert (own / ".cache" / "fibration" / "key").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(own / "chosen"))
    assert written() == "ours"
    assert (own / "chosen" / "fibration" / "key").is_dir()


def read_only(own, monkeypatch):
    def refuse(place, make=cache.make_private):
        if own in place.parents:
            raise OSError(30, "Read-only file system")
        make(place)

    monkeypatch.setattr(cache, "make_private", refuse)


HOMES = {
    "read-only": (read_only, "Read-only file system"),
    "everybody's": (lambda own, patch: own.chmod(0o777), "can be written by everybody"),
    "none": (lambda own, patch: patch.setattr(Path, "home", no_home), "there is no cache folder"),
}


def no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("way", HOMES)
def test_a_home_that_cannot_be_used_is_warned_about_and_replaced(way, own, tmp_path, monkeypatch):
    change, said = HOMES[way]
    (tmp_path / "temporary").mkdir()
    change(own, monkeypatch)
    with pytest.warns(RuntimeWarning, match="kernels are built for this process alone") as told:
        assert written() == "ours"
    assert said in str(told[0].message) and "set FIBRATION_CACHE" in str(told[0].message)
    assert not (own / ".cache").exists()


def test_a_chosen_folder_has_no_replacement(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for chosen, said in (("~nobody-of-this-name/cache", "no cache folder"), (tmp_path / "shared" / "x", "is not safe")):
        monkeypatch.setenv("FIBRATION_CACHE", str(chosen))
        with pytest.raises(BackendError, match=said):
            written()
    assert not (tmp_path / "shared" / "x").exists()


def test_a_temporary_folder_is_removed_by_its_process_and_not_by_a_fork(monkeypatch):
    at_exit = []
    monkeypatch.setattr(cache.atexit, "register", at_exit.append)
    place = cache._temporary.__wrapped__()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    at_exit[0]()
    assert place.is_dir()
    monkeypatch.setattr(os, "getpid", lambda: mine)
    at_exit[0]()
    assert not place.exists()
