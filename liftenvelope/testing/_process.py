"""Server processes and their folders, neither of which outlives this Python process."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError
from liftenvelope.testing._listening import is_listening

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ServerProcess", "make_folder", "remove_folder"]

#: What of our environment a server gets: nothing that could configure it.
_ENVIRONMENT: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "USER")
# Seconds for a clean stop. A server that hangs is rare, and one that is killed because the machine is busy
# loses what it had not written.
_STOP_TIMEOUT: Final = 60.0
_LOG_TAIL_LINES: Final = 40

_lock = threading.Lock()
_running: dict[int, subprocess.Popen[bytes]] = {}
_folders: set[Path] = set()


class _Reaper:
    """The process that cleans up after us if we are killed and can't do it (see ``_reaper.py``)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, pid: int) -> None:
        """Take care of a process, and of everything else that there is by now."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        for thing in (pid, *_running, *_folders):
            self._tell(f"+{thing}\n")

    def remove(self, thing: int | Path) -> None:
        self._tell(f"-{thing}\n")

    def stop(self) -> None:
        """Have it clean up what is left, and wait until it has."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def forget_in_child(self) -> None:
        """Leave it to the parent: a forked child that kept the pipe open would hold it back."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            # The child must not wait for it either.
            self._process.returncode = 0
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("_reaper.py"))
        # A session of its own: Ctrl-C in a terminal goes to every process of the session.
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            # Somebody may have killed it. Then the next server starts another one.
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
    """Leave the servers and folders to the parent: they are not a forked child's."""
    _running.clear()
    _folders.clear()
    _reaper.forget_in_child()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_in_child)


def make_folder() -> Path:
    """Make a temporary folder, which is removed at exit if not before."""
    folder = Path(tempfile.mkdtemp(prefix="liftenvelope-"))
    with _lock:
        _folders.add(folder)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that :func:`make_folder` made in this process, with all that is in it."""
    with _lock:
        if folder not in _folders:
            return
    shutil.rmtree(folder, ignore_errors=True)
    with _lock:
        _folders.discard(folder)
        _reaper.remove(folder)


class ServerProcess:
    """One program that can be started again after it has stopped, always with the same log.

    It belongs to the Python process that made it: a forked child can neither start nor stop it.

    Args:
        folder: Where it runs, and where its log is.
        log_name: Name of the log file there.
    """

    def __init__(self, folder: Path, log_name: str) -> None:
        self._folder = folder
        self._log_path = folder / log_name
        self._log = ""
        self._launched_at = 0
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self.returncode is None

    @property
    def pid(self) -> int | None:
        """Its process id, None when it is not running."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def returncode(self) -> int | None:
        """With what it ended last, negative for a signal; None before that, and while it runs."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            self._forget()
        return status

    def listens_on(self, port: int) -> bool:
        """Return whether it runs and is the process that listens on a TCP port."""
        pid = self.pid
        return pid is not None and is_listening(pid, port) and self.is_running

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it, with ``env`` and little more as its environment.

        Raises:
            UsageError: It is running, or it belongs to another Python process.
        """
        if self._owner != os.getpid():
            raise UsageError(f"the server must be started by process {self._owner}, got {os.getpid()}")
        if self.is_running:
            raise UsageError(f"the server is running already, as process {self.pid}")
        self._launched_at = len(self.log())
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
        """Ask it to stop and wait until it has, or kill it after 60 s; return how it ended."""
        return self._end(signal.SIGINT)

    def kill(self) -> int | None:
        """Kill it (SIGKILL) and wait until it has gone; return how it ended."""
        return self._end(signal.SIGKILL)

    def log(self) -> str:
        """Return all that it has written, since its first start."""
        if self._log_path.exists():
            self._log = self._log_path.read_text("utf-8", "replace")
        # The folder may be gone: then this is what was read last.
        return self._log

    def log_tail(self) -> str:
        """Return the last lines that it has written since its latest start."""
        return "\n".join(self.log()[self._launched_at :].splitlines()[-_LOG_TAIL_LINES:])

    def _end(self, signum: signal.Signals) -> int | None:
        process = self._process
        if process is None:
            return None
        process.send_signal(signum)
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()
        return process.returncode

    def _forget(self) -> None:
        """Take the process, which has ended, off the list of those to kill: its id may be used again."""
        with _lock:
            if self._process is not None and _running.pop(self._process.pid, None) is not None:
                _reaper.remove(self._process.pid)
