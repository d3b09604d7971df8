"""Another Liftbridge client in the same process: its messages have the same names as ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

OURS = "from liftenvelope._pb import api_pb2 as ours"
THEIRS = "from gufo.liftbridge import api_pb2 as theirs, client"
USE = """
request = ours.PublishRequest(stream="orders", value=b"x", correlationId="1")
again = theirs.PublishRequest.FromString(request.SerializeToString())
assert (again.stream, again.value, again.correlationId) == ("orders", b"x", "1"), again
assert type(again) is not type(request)
assert ours.DESCRIPTOR is not theirs.DESCRIPTOR
"""


@pytest.mark.parametrize("program", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_gufo_liftbridge_and_ours_in_one_process(program: tuple[str, str]) -> None:
    code = "\n".join((*program, USE))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
