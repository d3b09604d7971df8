"""``commitConsumer`` of a query whose driver is killed and started again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream
from tests.spark.commit_program import STREAM, committed, position
from tests.spark.examples import run_program

pytestmark = pytest.mark.timeout(900)


def publish(server: NatsServer, start: int, stop: int) -> None:
    rows = pa.table({"value": [b"%d" % number for number in range(start, stop)]})
    bulk.write(server.url, STREAM, rows, subject=f"{STREAM}.x")


def run(server: NatsServer, folder: Path, moment: str) -> None:
    work = ("-m", "tests.spark.commit_program", server.url, str(folder), moment)
    status, output = run_program(*work, folder=folder)
    assert status == (0 if moment == "never" else -signal.SIGKILL), output


def check_position(server: NatsServer, folder: Path, total: int) -> int:
    """Check that the ack floor is at most what Spark has committed, and the lag is the rest; return it."""
    floor, lag = position(server.url)
    assert floor <= committed(folder / "checkpoint")
    assert lag == (total - floor if floor else 0)
    return floor


def test_ack_floor_follows_the_commits_of_a_driver_that_is_killed_and_started_again(tmp_path: Path) -> None:
    total = 60
    with jetstream() as server:
        make_stream(server.url, STREAM)
        publish(server, 0, total)
        floors = []
        for moment in ("0 after", "1 committed", "3 before", "4 after"):
            run(server, tmp_path, moment)
            floors.append(check_position(server, tmp_path, total))
        assert floors == sorted(floors)
        assert floors[-1] > 0
        publish(server, total, total + 20)
        assert check_position(server, tmp_path, total + 20) == floors[-1]
        run(server, tmp_path, "never")
        assert committed(tmp_path / "checkpoint") == total + 20
        assert check_position(server, tmp_path, total + 20) == total + 20
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    assert sorted({value for note in notes for value in note["values"]}) == list(range(total + 20))
    for note in notes:
        assert note["position"][0] <= note["committed"] == note["values"][0]
    # Each batch but the first of a run finds the ack floor at the commit before it.
    assert [note["position"][0] for note in notes[-2:]] == [note["committed"] for note in notes[-2:]]
