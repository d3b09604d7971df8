"""Commands that SIGTERM ends at any moment of their coroutine."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A command whose coroutine gets SIGTERM at a moment that its body chooses.
COMMAND = """
import asyncio, os, signal, sys
from liftenvelope.cli._connecting.termination import run_until_terminated

def end():
    os.kill(os.getpid(), signal.SIGTERM)

async def work():
{body}

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
run_until_terminated(work())
"""


def run(body: str) -> tuple[int, str]:
    """Return the exit status and the last line of standard error."""
    code = COMMAND.format(body="\n".join(f"    {line}" for line in body.splitlines()))
    line = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    return done.returncode, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "body",
    [
        "end()",
        "asyncio.get_running_loop().call_soon(end)\nawait asyncio.Event().wait()",
        # As in the wait of a condition, which unlocks it meanwhile.
        "async with (changed := asyncio.Condition()):\n    changed.release()\n    end()",
    ],
    ids=["in the coroutine", "in the loop", "between two locks"],
)
def test_sigterm_ends_the_command_without_a_traceback(body: str) -> None:
    assert run(body) == (143, "")


def test_error_of_the_command_stays_an_error() -> None:
    body = (
        "asyncio.get_running_loop().call_soon(end)\n"
        "try:\n    await asyncio.Event().wait()\nfinally:\n    raise RuntimeError('mine')"
    )
    assert run(body) == (1, "RuntimeError: mine")
