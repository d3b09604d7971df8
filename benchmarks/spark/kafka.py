"""A single Kafka broker, and Spark's connector to it: jars of Maven Central, kept in the user's cache.

``make bench-spark`` needs Maven and Java for it: Maven fetches the jars, Java runs the broker.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from liftenvelope.testing._build import _cache_folder
from liftenvelope.testing._ports import free_port
from liftenvelope.testing._process import ServerProcess, make_folder, remove_folder

#: Versions of the connector, and of the package of Spark with Kafka's tokens that it needs. The first is that
#: of Spark itself; the others are for when it has not come to Maven Central.
_FALLBACKS: Final = (("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"))
_CONNECTOR: Final = "spark-sql-kafka-0-10_2.13"
_TOKENS: Final = "spark-token-provider-kafka-0-10_2.13"
#: Jars of the connector that are not Spark's already.
_NOT_IN_SPARK: Final = (
    _CONNECTOR,
    _TOKENS,
    "kafka-clients-",
    "commons-pool2-",
    "scala-parallel-collections_",
)
#: Any will do, but it must have a UUID's 16 bytes.
_CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_RESOLVING: Final = 900.0
_STARTING: Final = 120.0
#: Some POMs name repositories that not everybody reaches. What is needed is in Central.
_SETTINGS: Final = """<settings><mirrors><mirror><id>central-only</id><mirrorOf>*</mirrorOf>
<url>https://repo.maven.apache.org/maven2</url></mirror></mirrors></settings>"""
_PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class KafkaMissingError(Exception):
    """There is no Kafka to compare with."""


@dataclass(frozen=True)
class KafkaJars:
    """Jars that were fetched.

    Attributes:
        connector: Jars for Spark.
        broker: Jars of the broker.
        connector_version, kafka_version: Of what.
    """

    connector: tuple[Path, ...]
    broker: tuple[Path, ...]
    connector_version: str
    kafka_version: str


@dataclass(frozen=True)
class Kafka:
    """A broker that runs."""

    address: str


def find_jars(spark_version: str) -> KafkaJars | None:
    """Return the jars if they have been fetched already."""
    folder = _folder(spark_version)
    if not (folder / "complete").exists():
        return None
    connector = sorted((folder / "connector").glob("*.jar"))
    clients = _version(connector, "kafka-clients-")
    return KafkaJars(
        tuple(jar for jar in connector if jar.name.startswith(_NOT_IN_SPARK)),
        tuple(sorted((folder / "broker").glob("*.jar"))),
        _version(connector, _CONNECTOR + "-"),
        clients,
    )


def resolve_jars(spark_version: str) -> KafkaJars:
    """Return the jars; fetch them with Maven if they are not there.

    Raises:
        KafkaMissingError: There is no Maven, or it can't fetch them.
    """
    if (found := find_jars(spark_version)) is not None:
        return found
    if shutil.which("mvn") is None:
        raise KafkaMissingError("no Kafka to compare with: install Maven (on Debian: apt-get install maven)")
    target = _folder(spark_version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        _fetch_connector(Path(made), spark_version)
        clients = _version(sorted((Path(made) / "connector").glob("*.jar")), "kafka-clients-")
        _copy(Path(made), "broker", [("org.apache.kafka", "kafka_2.13", clients, "")])
        (Path(made) / "complete").touch()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    found = find_jars(spark_version)
    assert found is not None
    return found


def _fetch_connector(folder: Path, spark_version: str) -> None:
    errors: list[str] = []
    for connector, tokens in ((spark_version, spark_version), *_FALLBACKS):
        try:
            _copy(
                folder,
                "connector",
                # What is Spark's and Hadoop's comes with PySpark.
                [
                    ("org.apache.spark", _CONNECTOR, connector, "org.apache.spark org.apache.hadoop"),
                    ("org.apache.spark", _TOKENS, tokens, "*"),
                ],
            )
        except KafkaMissingError as exc:
            errors.append(str(exc))
        else:
            return
    raise KafkaMissingError("; ".join(errors))


def _copy(folder: Path, name: str, wanted: Sequence[tuple[str, str, str, str]]) -> None:
    """Have Maven copy artifacts and what they depend on into a folder of this name."""
    (folder / "settings.xml").write_text(_SETTINGS, "utf-8")
    (folder / "pom.xml").write_text(_pom(wanted), "utf-8")
    shutil.rmtree(folder / name, ignore_errors=True)
    settings = ("-s", str(folder / "settings.xml"), "-f", str(folder / "pom.xml"))
    copy = ("dependency:copy-dependencies", f"-DoutputDirectory={folder / name}")
    done = subprocess.run(
        ["mvn", "-q", "-B", *settings, *copy],
        capture_output=True,
        text=True,
        timeout=_RESOLVING,
        check=False,
    )
    if done.returncode:
        first = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr)
        raise KafkaMissingError(f"Maven could not fetch {wanted[0][1]} {wanted[0][2]}: {first}")


def _pom(wanted: Sequence[tuple[str, str, str, str]]) -> str:
    found = []
    for group, artifact, version, left_out in wanted:
        without = "".join(
            f"<exclusion><groupId>{one}</groupId><artifactId>*</artifactId></exclusion>"
            for one in left_out.split()
        )
        found.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{escape(version)}</version><exclusions>{without}</exclusions></dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>local</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(found)}</dependencies></project>"
    )


def _version(jars: Sequence[Path], prefix: str) -> str:
    return next(jar.stem.removeprefix(prefix) for jar in jars if jar.name.startswith(prefix))


def _folder(spark_version: str) -> Path:
    return _cache_folder() / f"kafka-for-spark-{spark_version}"


@contextmanager
def run_kafka(jars: KafkaJars) -> Iterator[Kafka]:
    """Run a broker with its data in a temporary folder, for as long as the block."""
    folder = make_folder()
    broker = ServerProcess(folder, "kafka.log")
    try:
        port = free_port()
        settings = folder / "server.properties"
        text = _PROPERTIES.format(port=port, controller=free_port(), folder=folder)
        settings.write_text(text, "utf-8")
        java = [shutil.which("java") or "java", "-Xmx1g", "-cp", os.pathsep.join(map(str, jars.broker))]
        made = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
        subprocess.run(made, capture_output=True, timeout=_STARTING, check=True)
        broker.start([*java, "kafka.Kafka", str(settings)], {})
        _await_port(broker, port)
        yield Kafka(f"127.0.0.1:{port}")
    finally:
        broker.kill()
        remove_folder(folder)


def _await_port(broker: ServerProcess, port: int) -> None:
    limit = time.monotonic() + _STARTING
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            if not broker.is_running or time.monotonic() > limit:
                raise KafkaMissingError(f"the broker did not start: {broker.log_tail()}") from None
            time.sleep(0.1)
        else:
            return
