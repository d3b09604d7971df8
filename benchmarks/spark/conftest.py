"""One Spark session for these benchmarks, and the streams that they read and write.

They are not collected where PySpark is not installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import liftenvelope
from benchmarks.report import Report
from benchmarks.spark.kafka import Kafka, KafkaJars, KafkaMissingError, find_jars, resolve_jars, run_kafka
from liftenvelope.testing import NatsServer, run_nats_server

collect_ignore_glob = [] if find_spec("pyspark") else ["bench_*.py"]

ROOT = str(Path(liftenvelope.__file__).parent.parent)
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Progress of every micro-batch of a round is wanted.
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


@pytest.fixture(scope="session")
def quick(pytestconfig: pytest.Config) -> bool:
    """True in a small run, which only shows that everything works."""
    return not pytestconfig.getoption("benchmark_enable")


@pytest.fixture(scope="session")
def kafka_jars(quick: bool) -> KafkaJars | None:
    """Kafka's broker and Spark's connector; None where they are missing and the run is to be quick."""
    from pyspark import __version__

    if quick:
        return find_jars(__version__)
    try:
        return resolve_jars(__version__)
    except KafkaMissingError as exc:
        print(exc, file=sys.stderr)
        return None


@pytest.fixture(scope="session")
def spark(kafka_jars: KafkaJars | None, report: Report, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The session, with the settings that liftenvelope recommends and Spark's own otherwise."""
    from pyspark.sql import SparkSession

    from liftenvelope.spark import recommended_conf, register

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH")))))
        settings = SETTINGS | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
        if kafka_jars is not None:
            settings["spark.jars"] = ",".join(map(str, kafka_jars.connector))
        builder: Any = SparkSession.builder
        session = builder.config(map={**settings, **recommended_conf()}).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        register(session)
        report.command = "`make bench-spark` (`python -m benchmarks.spark`)"
        report.versions["PySpark"] = session.version
        report.versions["Java"] = session.sparkContext._jvm.System.getProperty("java.version")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def jetstream(report: Report) -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True) as server:
        report.versions["nats-server"] = server.version
        yield server


@pytest.fixture(scope="session")
def kafka(kafka_jars: KafkaJars | None, report: Report) -> Iterator[Kafka]:
    """A single broker."""
    if kafka_jars is None:
        pytest.skip("Kafka's jars are not there: install Maven (mvn) and run make bench-spark")
    with run_kafka(kafka_jars) as broker:
        report.versions["Kafka"] = kafka_jars.kafka_version
        report.versions["spark-sql-kafka"] = kafka_jars.connector_version
        yield broker
