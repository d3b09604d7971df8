"""One Spark session for all tests of this folder, and a watchdog on each of them.

Spark keeps what it starts: the session is made once, in some ten seconds, and is gone with the process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

import liftenvelope
from liftenvelope.spark import recommended_conf, register
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import jetstream, make_stream
from tests.spark.streams import Stream

#: Seconds that a test may take, on a machine that is slow and has other work.
WATCHDOG = 400.0
#: Seconds before that at which the stacks are printed, while the JVM can still be asked.
STACKS = 30.0
ROOT = str(Path(liftenvelope.__file__).parent.parent)
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# Of a task that fails there are two attempts more.
SETTINGS = {
    "spark.master": "local[2,3]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.driver.memory": "1g",
    "spark.sql.python.filterPushdown.enabled": "true",
}


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Its workers import what the tests import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH")))))
        builder: Any = SparkSession.builder
        settings = SETTINGS | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
        for name, value in {**settings, **recommended_conf()}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        register(spark)
        yield spark
        spark.stop()


def print_stacks(gateway: Any) -> None:
    """Print the stacks of the test and of the JVM. Without them, nothing tells why a test hung."""
    faulthandler.dump_traceback(2)
    for stack in gateway.jvm.org.apache.spark.util.Utils.getThreadDump():
        print(stack.toString(), file=sys.stderr)


@pytest.fixture
def spark(session: SparkSession) -> Iterator[SparkSession]:
    """The session; a test that hangs ends with its JVM, and no query outlives its test."""
    gateway: Any = session.sparkContext._gateway
    timers = [
        threading.Timer(WATCHDOG - STACKS, print_stacks, [gateway]),
        threading.Timer(WATCHDOG, gateway.proc.kill),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield session
        for query in session.streams.active:
            query.stop()
    finally:
        for timer in timers:
            timer.cancel()


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """A server with JetStream."""
    with jetstream() as server:
        yield server


@pytest.fixture
def name() -> str:
    """A name for a stream that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture(params=["jetstream", "liftbridge", "gateway"])
def stream(request: pytest.FixtureRequest, name: str) -> Stream:
    """An empty stream of each kind of server."""
    if request.param == "jetstream":
        server: NatsServer = request.getfixturevalue("nats")
        make_stream(server.url, name)
        return Stream("jetstream", server.url, name)
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    cluster.create_stream(name, partitions=2)
    return Stream("liftbridge", cluster.addresses[0], name, partitions=2)
