"""Files that are written: what is replaced whole, what is written to, and that the checks agree. No test opens /dev."""

from __future__ import annotations

import json
import os
import pty
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fibration import files
from fibration.cli.main import app
from fibration.errors import BackendError
from fibration.rollouts.file import Rollouts, load_rollouts

ROLLOUTS = Rollouts(np.zeros(3, np.float32), np.zeros(3, np.float32), np.array([0, 3]))
LOSS = """
def loss(log_probs, old_log_probs, advantages, mask):
    return -(log_probs * advantages * mask).sum() / mask.sum()
"""
COMMANDS = [["verify", "ppo"], ["compare", "ppo", "ppo"], ["audit", "loss.py:loss", "--as", "ppo"]]


def command(*arguments: object) -> tuple[str, str]:
    """Stdout and stderr of a command that ends with a result."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code in (0, 1), done.output
    return done.stdout, done.stderr


def rollouts_in(contents: bytes, folder: Path) -> int:
    (folder / "copy").write_bytes(contents)
    return load_rollouts(folder / "copy").n_tokens


def test_fifos_are_written_to_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loss.py").write_text(LOSS)
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)

    def read(write: Callable[[], object]) -> bytes:
        heard: list[bytes] = []
        reader = threading.Thread(target=lambda: heard.append(fifo.read_bytes()), daemon=True)
        reader.start()
        write()
        reader.join(10)
        assert stat.S_ISFIFO(fifo.lstat().st_mode) and link.is_symlink()
        return heard[0]

    for words in COMMANDS:
        assert json.loads(read(lambda words=words: command(*words, "-f", "json", "-o", link)))  # type: ignore[misc]
    assert rollouts_in(read(lambda: ROLLOUTS.save(link)), tmp_path) == 3


def test_devices_sockets_and_terminals_are_written_to_and_stay(tmp_path: Path) -> None:
    upper, lower = pty.openpty()
    terminal = tmp_path / "terminal"
    terminal.symlink_to(os.ttyname(lower))
    files.write_file(terminal, "to a terminal\n")
    assert os.read(upper, 99) == b"to a terminal\r\n"

    with socket.socket(socket.AF_UNIX) as server:
        place = tmp_path / "socket"
        server.bind(str(place))
        server.listen()
        files.write_file(place, b"to a socket")
        with server.accept()[0] as peer:
            assert peer.recv(99) == b"to a socket"
        assert stat.S_ISSOCK(place.stat().st_mode)

    if os.getuid() == 0:
        node = tmp_path / "node"
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        files.write_file(node, "lost")
        files.check_writable_file(node, ".json")
        assert stat.S_ISCHR(node.stat().st_mode)


def test_a_fifo_without_a_reader_is_an_error_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with pytest.raises(OSError, match=r"no process has opened this FIFO to read it in 0.1 s.*fifo'"):
        files.write_file(tmp_path / "fifo", "report")
    code = CliRunner().invoke(app, ["verify", "ppo", "-o", str(tmp_path / "fifo")]).exit_code
    assert code == 2


def test_results_on_stdout_stand_there_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "loss.py").write_text(LOSS)
    for words in COMMANDS:
        results, beside = command(*words, "-f", "json", "--output", "-")
        assert json.loads(results)
        assert beside.endswith("report in -\n")
    assert [p.name for p in tmp_path.iterdir()] == ["loss.py"]


def test_a_path_that_leads_to_stdout_is_stdout_even_if_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    (tmp_path / "out").write_text("before\n")
    program = """
import sys, pathlib, fibration.files
print(1)
for path in sys.argv[1:]:
    fibration.files.write_file(pathlib.Path(path), "2\\n")
print(3)
"""
    with (tmp_path / "out").open("a") as out:
        paths = ["-", "/proc/self/fd/1", tmp_path / "link", tmp_path / "out"]
        subprocess.run([sys.executable, "-c", program, *paths], check=True, stdout=out, cwd=tmp_path)
    assert (tmp_path / "out").read_text().split() == ["before", "1", "2", "2", "2", "2", "3"]
    assert {p.name for p in tmp_path.iterdir()} == {"link", "out"}


def test_a_link_is_followed(tmp_path: Path) -> None:
    for target in ("there", "not there/yet"):
        link = tmp_path / f"link to {target.partition('/')[0]}"
        link.symlink_to(target)
        (tmp_path / "there").write_text("old contents, longer than the new ones")
        files.check_writable_file(link)
        files.write_file(link, "new")
        assert link.is_symlink() and (tmp_path / target).read_text() == "new"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(BackendError, match="Too many levels of symbolic links"):
        files.check_writable_file(tmp_path / "round")
    with pytest.raises(OSError, match="Too many levels"):
        files.write_file(tmp_path / "round", "new")
    assert (tmp_path / "round").is_symlink()


def test_modes_are_kept_or_those_of_the_umask(tmp_path: Path) -> None:
    old, new, long = tmp_path / "old", tmp_path / "new", tmp_path / ("n" * 255)
    old.touch()
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        for path in (old, new, long):
            files.write_file(path, "contents")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new, long)] == [0o640] * 3
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_that_is_open_and_has_no_name_is_written_to(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("w+") as file:
        (tmp_path / "gone").unlink()
        files.write_file(Path(f"/proc/self/fd/{file.fileno()}"), "through the descriptor")
        assert file.read() == "through the descriptor"
    assert not list(tmp_path.iterdir())


def test_stdout_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError, match="'-' is stdout"):
        files.check_writable(Path("-"), "--output")
