"""Program that outlives its parent briefly, to kill servers that the parent can't kill any more.

It runs as ``python _reaper.py`` and reads lines from standard input: ``+`` or ``-``, then a process id or the
path of a folder. The input ends when the parent does. The reaper then kills the processes and removes the
folders that were added and not removed. It imports nothing of the package, because it is run by path.

On Linux the kernel could do this (PR_SET_PDEATHSIG), but that signal follows the thread that started the
child: a server started from a worker thread of asyncio would die with the event loop.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

# Seconds to wait for killed processes to end, so that none writes to a folder while it is removed.
_PATIENCE = 60.0


class Process:
    """A process, held by a handle where the system has them, so that a reused id does no harm.

    Raises:
        ProcessLookupError: The process does not exist any more.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._handle: int | None = None
        if sys.platform == "linux":
            try:
                self._handle = os.pidfd_open(pid)
            except ProcessLookupError:
                raise
            except OSError:
                pass  # an old kernel, or a container that forbids it: fall back to the id

    def forget(self) -> None:
        """Release the handle."""
        if self._handle is not None:
            os.close(self._handle)

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "linux" and self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            else:
                os.kill(self._pid, signal.SIGKILL)

    def wait(self, deadline: float) -> None:
        """Wait until the process has ended, or the deadline has passed."""
        while time.monotonic() < deadline and self._is_there():
            time.sleep(0.01)

    def _is_there(self) -> bool:
        if self._handle is not None:
            return not select.select([self._handle], [], [], 0)[0]
        try:
            os.kill(self._pid, 0)
        except OSError:
            return False
        return True


def main() -> None:
    """Read standard input to its end, then clean up."""
    processes: dict[int, Process] = {}
    folders: set[str] = set()
    for line in sys.stdin:
        thing = line[1:].rstrip("\n")
        if not thing.isdigit():
            change = folders.add if line.startswith("+") else folders.discard
            change(thing)
        elif line.startswith("-"):
            if int(thing) in processes:
                processes.pop(int(thing)).forget()
        elif int(thing) not in processes:
            with contextlib.suppress(ProcessLookupError):
                processes[int(thing)] = Process(int(thing))
    clean_up(list(processes.values()), folders)


def clean_up(processes: list[Process], folders: set[str]) -> None:
    """Kill the processes, wait for their end, and remove the folders."""
    for process in processes:
        process.kill()
    deadline = time.monotonic() + _PATIENCE
    for process in processes:
        process.wait(deadline)
    for folder in filter(os.path.isabs, folders):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
