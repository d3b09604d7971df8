"""A program that outlives its parent by a moment, to kill what the parent can't any more.

It runs as ``python _reaper.py`` and reads lines from standard input: ``+`` or ``-``, then the id of a process
or the path of a folder. When the input ends, because the parent has, it kills the processes and removes the
folders that were added and not taken away. It imports nothing of the package, since it is run by its path.

On Linux the kernel could do this (PR_SET_PDEATHSIG), but it goes by the thread that started the child: a
server started from a worker thread of asyncio would die with the event loop.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Read the lines to their end, then clean up."""
    things: set[str] = set()
    for line in sys.stdin:
        change = things.add if line.startswith("+") else things.discard
        change(line[1:].rstrip("\n"))
    for pid in filter(str.isdigit, things):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)
    for folder in filter(os.path.isabs, things):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
