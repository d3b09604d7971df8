"""A program that outlives its parent by a moment, to kill what the parent can't any more.

It runs as ``python _reaper.py`` and reads lines from standard input: ``+`` or ``-``, then the id of a process
or the path of a folder. When the input ends, because the parent has, it kills the processes and removes the
folders that were added and not taken away. It imports nothing of the package, since it is run by its path.

On Linux the kernel could do this (PR_SET_PDEATHSIG), but it goes by the thread that started the child: a
server started from a worker thread of asyncio would die with the event loop.
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
    """A process. Where the system has handles for processes, it is not confused with a later one of its id.

    Raises:
        ProcessLookupError: There is no such process any more.
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
                pass  # an old kernel, or a container that forbids it: the id must do

    def forget(self) -> None:
        """Give up the handle."""
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
        """Wait until the process has ended."""
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
    """Read the lines to their end, then clean up."""
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
    """Kill the processes, and remove the folders when none of them is left."""
    for process in processes:
        process.kill()
    deadline = time.monotonic() + _PATIENCE
    for process in processes:
        process.wait(deadline)
    for folder in filter(os.path.isabs, folders):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
