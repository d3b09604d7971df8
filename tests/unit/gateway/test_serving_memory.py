"""Memory that a standalone gateway returns, in a process of its own because malloc is set for all of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROGRAM: Final = """
from pathlib import Path
from liftenvelope.gateway.serving import map_large_blocks

def resident_mib() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) // 1024

map_large_blocks()
bytearray(b"x" * 16_000_000)  # freed at once: malloc would keep blocks of that size from now on
before = resident_mib()
blocks = [(bytearray(b"x" * 4_000_000), bytearray(200_000)) for _ in range(64)]
held = resident_mib() - before
small = [one for _, one in blocks]  # between the large ones, so that the heap can't shrink
del blocks
print(held, resident_mib() - before)
"""


def test_freed_messages_return_to_the_system() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    held, left = map(int, ran.stdout.split())
    assert held > 200
    assert left < 50
