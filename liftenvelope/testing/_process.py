"""Server processes and their folders, removed when this Python process ends, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError
from liftenvelope.testing._listening import is_listening

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ServerProcess", "make_folder", "remove_folder"]

#: Environment variables passed on to servers: none of them can configure a server.
_ENVIRONMENT: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "USER")
# Seconds to wait for a clean stop. The limit is long because a server killed on a busy machine loses what it
# has not written, while a server that hangs is rare.
_STOP_TIMEOUT: Final = 60.0
_FREEZE_INTERVAL: Final = 0.001
_LOG_TAIL_LINES: Final = 40
# How a Go program begins its last words. Every goroutine follows, often thousands of lines.
_LAST_WORDS: Final = ("panic:", "fatal error:", "unexpected fault address")

_lock = threading.Lock()
_running: dict[int, subprocess.Popen[bytes]] = {}
_folders: set[Path] = set()


class _Reaper:
    """Process that cleans up if this process is killed (see ``_reaper.py``)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, pid: int) -> None:
        """Register a process, and again every other process and folder, in case the reaper is new."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        for thing in (pid, *_running, *_folders):
            self._tell(f"+{thing}\n")

    def remove(self, thing: int | Path) -> None:
        self._tell(f"-{thing}\n")

    def stop(self) -> None:
        """End the reaper after it has cleaned up what is left."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def forget_in_child(self) -> None:
        """Leave the reaper to the parent: a forked child that kept the pipe open would delay it."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            # Popen in the child must not wait for it either.
            self._process.returncode = 0
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("_reaper.py"))
        # A session of its own, because Ctrl-C in a terminal reaches every process of the session.
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            # If the reaper was killed, the next server starts another one.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode())


_reaper = _Reaper()


@atexit.register
def _clean_up() -> None:
    for process in list(_running.values()):
        process.kill()
        process.wait()
        _reaper.remove(process.pid)
    for folder in list(_folders):
        remove_folder(folder)
    _reaper.stop()


def _forget_in_child() -> None:
    """Leave the servers and folders to the parent: a forked child does not own them."""
    _running.clear()
    _folders.clear()
    _reaper.forget_in_child()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_in_child)


def make_folder() -> Path:
    """Create a temporary folder that is removed at exit at the latest."""
    folder = Path(tempfile.mkdtemp(prefix="liftenvelope-"))
    with _lock:
        _folders.add(folder)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder made by :func:`make_folder` in this process, with its contents."""
    with _lock:
        if folder not in _folders:
            return
    shutil.rmtree(folder, ignore_errors=True)
    with _lock:
        _folders.discard(folder)
        _reaper.remove(folder)


class ServerProcess:
    """A program that can be restarted and keeps the same log.

    The process that creates the object owns the program: a forked child can neither start nor stop it.

    Args:
        folder: Working directory, which also holds the log.
        log_name: Name of the log file.
    """

    def __init__(self, folder: Path, log_name: str) -> None:
        self._folder = folder
        self._log_path = folder / log_name
        self._log = ""
        self._launched_at = 0
        self._was_ended = False
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._process is not None and self.returncode is None

    @property
    def has_failed(self) -> bool:
        """True if the program has ended, and not by :meth:`stop` or :meth:`kill`."""
        return self._process is not None and not self.is_running and not self._was_ended

    @property
    def pid(self) -> int | None:
        """Process id; None if the program is not running."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def returncode(self) -> int | None:
        """Last exit status, negative for a signal; None before the first end and while running."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            self._forget()
        return status

    def listens_on(self, port: int) -> bool:
        """Return True if the program runs and listens on a TCP port."""
        pid = self.pid
        return pid is not None and is_listening(pid, port) and self.is_running

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the program, with ``env`` and a few more variables as its environment.

        Raises:
            UsageError: The program is running, or belongs to another Python process.
        """
        if self._owner != os.getpid():
            raise UsageError(f"the server must be started by process {self._owner}, got {os.getpid()}")
        if self.is_running:
            raise UsageError(f"the server is already running as process {self.pid}; stop it first")
        self._launched_at, self._was_ended = len(self.log()), False
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        with self._log_path.open("ab") as log, _lock:
            self._process = subprocess.Popen(  # noqa: S603 - a program that the user has chosen
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, **env},
                start_new_session=True,
            )
            _reaper.add(self._process.pid)
            _running[self._process.pid] = self._process

    def stop(self) -> int | None:
        """Stop the program with SIGINT, or kill it after 60 s; return the exit status."""
        return self._end(signal.SIGINT)

    def kill(self) -> int | None:
        """Kill the program with SIGKILL, but between its writes; return the exit status once it has ended.

        SIGKILL alone can cut a write in half. Liftbridge 1.9 keeps such half a message, and panics whenever
        it is read.
        """
        self._freeze()
        return self._end(signal.SIGKILL)

    def log(self) -> str:
        """Return the whole output since the first start."""
        if self._log_path.exists():
            self._log = self._log_path.read_text("utf-8", "replace")
        # If the folder is gone, this is the log as read last.
        return self._log

    def log_tail(self) -> str:
        """Return the last lines of output since the latest start, or those around a panic."""
        lines = self.log()[self._launched_at :].splitlines()
        panics = (number for number, line in enumerate(lines) if line.startswith(_LAST_WORDS))
        end = next(panics, len(lines)) + _LOG_TAIL_LINES // 2
        return "\n".join(lines[:end][-_LOG_TAIL_LINES:])

    def _freeze(self) -> None:
        """Stop the program where it is. Unlike SIGKILL, SIGSTOP lets every system call on a file finish."""
        process = self._process
        if process is None or sys.platform != "linux":
            return
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_TIMEOUT
        with contextlib.suppress(ChildProcessError):  # it has ended
            # The process is stopped once all its threads are. WNOWAIT leaves an exit status to Popen.
            how = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
            while os.waitid(os.P_PID, process.pid, how) is None and time.monotonic() < deadline:
                time.sleep(_FREEZE_INTERVAL)

    def _end(self, signum: signal.Signals) -> int | None:
        process = self._process
        if process is None:
            return None
        self._was_ended = self._was_ended or self.is_running
        process.send_signal(signum)
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()
        return process.returncode

    def _forget(self) -> None:
        """Unregister the ended process, because its id may be reused and must not be killed."""
        with _lock:
            if self._process is not None and _running.pop(self._process.pid, None) is not None:
                _reaper.remove(self._process.pid)
