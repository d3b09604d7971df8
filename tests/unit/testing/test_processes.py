"""Processes of test servers: when they end, when this process ends, and who cleans up after both."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from liftenvelope.testing import _process, _reaper
from liftenvelope.testing._process import ServerProcess

DEADLINE = 120.0
#: Adds files to its folder as fast as it can, until it is killed.
BUSY = """
import itertools, os
for number in itertools.count():
    os.makedirs(f"{number % 97}/{number}")
"""


#: Writes pieces of 16 MiB, one after another.
WRITES = """
import os
file, piece = os.open("written", os.O_WRONLY | os.O_CREAT), bytes(1 << 24)
while True:
    os.pwrite(file, piece, 0)
    os.ftruncate(file, 0)
"""


def wait_until_ended(process: ServerProcess) -> None:
    deadline = time.monotonic() + DEADLINE
    while process.is_running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_process_that_ended_by_itself_is_not_killed_later(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "log")
    process.start([sys.executable, "-c", "print('bye')"], {})
    pid = process.pid
    wait_until_ended(process)
    # Its id may be another process's by now.
    assert pid not in _process._running
    assert process.returncode == 0
    assert process.pid is None
    assert process.stop() == process.kill() == 0
    assert process.log() == "bye\n"


def test_log_tail_is_that_of_the_latest_start(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "log")
    for word in ("first", "sécond"):
        process.start([sys.executable, "-X", "utf8", "-c", f"print('{word}')"], {})
        wait_until_ended(process)
        assert process.log_tail() == word
    assert process.log() == "first\nsécond\n"


@pytest.mark.parametrize("has_handles", [True, False])
def test_reaper_removes_folders_when_nothing_writes_to_them_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_handles: bool
) -> None:
    if not has_handles:
        # As on macOS.
        monkeypatch.setattr(sys, "platform", "other")
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        with subprocess.Popen([sys.executable, "-c", BUSY], cwd=folder) as writer:
            process = _reaper.Process(writer.pid)
            # Somebody asks how it ended, as init does for a process whose parent has gone.
            threading.Thread(target=writer.wait).start()
            deadline = time.monotonic() + DEADLINE
            while len(list(folder.iterdir())) < 90:
                assert time.monotonic() < deadline
            _reaper.clean_up([process], {str(folder)})
            assert not folder.exists()
            assert writer.wait() == -signal.SIGKILL
        process.forget()


def test_reaper_kills_what_is_left_and_nothing_else(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    kept.mkdir()
    removed.mkdir()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(sleep) as left,
        subprocess.Popen(sleep) as taken_away,
        subprocess.Popen([sys.executable, "-c", ""]) as ended,
    ):
        ended.wait()
        # The id of a process that has gone could be anybody's by the time of the end.
        lines = [
            f"+{ended.pid}",
            f"+{left.pid}",
            f"+{left.pid}",
            f"+{taken_away.pid}",
            f"+{kept}",
            f"+{removed}",
        ]
        lines += [f"-{taken_away.pid}", f"-{kept}", "-1"]
        subprocess.run(
            [sys.executable, "-I", "-S", _reaper.__file__],
            input="\n".join(lines) + "\n",
            text=True,
            check=True,
        )
        assert left.wait() == -signal.SIGKILL
        assert taken_away.poll() is None
        assert kept.exists()
        assert not removed.exists()
        taken_away.kill()


def test_kill_cuts_no_write_in_half(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "log")
    written = tmp_path / "written"
    for number in range(20):
        written.unlink(missing_ok=True)
        process.start([sys.executable, "-c", WRITES], {})
        while not written.exists():
            time.sleep(0.001)
        time.sleep(number / 1000)
        process.kill()
        assert written.stat().st_size in (0, 1 << 24)
