"""Spark Connect, in a process of its own: a process has either kind of session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import make_stream
from tests.integration.project.test_examples import ROOT
from tests.spark.streams import Stream

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["jetstream", "liftbridge"])
def streams(request: pytest.FixtureRequest, name: str) -> tuple[Stream, str]:
    """A stream, and the name of another one, which can store rows once."""
    if request.param == "jetstream":
        server: NatsServer = request.getfixturevalue("nats")
        for one in (name, f"{name}-2"):
            make_stream(server.url, one)
        return Stream("jetstream", server.url, name), f"{name}-2"
    cluster: LiftbridgeCluster = request.getfixturevalue("liftbridge_server")
    for one in (name, f"{name}-2"):
        cluster.create_stream(one, optimistic_concurrency=True)
    return Stream("liftbridge", cluster.addresses[0], name), f"{name}-2"


def test_all_of_it(streams: tuple[Stream, str], tmp_path: Path) -> None:
    stream, second = streams
    stream.write(50)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    arguments = [stream.format, stream.servers, stream.name, second, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_session", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done" in done.stdout
