"""Run a declarative pipeline of Spark that keeps a table of a stream. A second run adds what is new."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nats
import pyarrow as pa
import pyarrow.dataset as ds

from liftenvelope import bulk
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import run_nats_server

DEFINITIONS = Path(__file__).parent / "declarative" / "orders.py"
SPECIFICATION = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  orders.servers: {servers}
"""
# Static settings cannot be in the specification. A run finds the tables of earlier ones in a catalogue that
# is kept: here Hive's, in files.
SETTINGS = """
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir {folder}/warehouse
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={folder}/metastore;create=true
spark.python.unix.domain.socket.enabled true
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
"""


async def make_stream(url: str) -> None:
    async with await nats.connect(url) as nc:
        await JetStream(nc).create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",)))


def make_project(folder: Path, servers: str) -> None:
    for name in ("transformations", "conf"):
        (folder / name).mkdir()
    shutil.copy(DEFINITIONS, folder / "transformations")
    (folder / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=folder, servers=servers))
    (folder / "conf" / "spark-defaults.conf").write_text(SETTINGS.format(folder=folder))


def run_pipeline(folder: Path) -> None:
    command = Path(sys.executable).parent / "spark-pipelines"
    where = {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(folder / "conf")}
    subprocess.run([command, "run"], cwd=folder, env={**os.environ, **where}, check=True)


def main(servers: str, folder: Path) -> None:
    asyncio.run(make_stream(servers))
    make_project(folder, servers)
    for part in (range(300), range(300, 500)):
        orders = pa.table({"id": part, "item": ["tea", "milk"] * (len(part) // 2)})
        bulk.write(servers, "ORDERS", orders, subject="orders.new", payload="json")
        run_pipeline(folder)
        offsets = ds.dataset(folder / "warehouse" / "orders").to_table()["offset"].to_pylist()
        items = ds.dataset(folder / "warehouse" / "items").to_table().sort_by("item")
        assert sorted(offsets) == list(range(part.stop))
        print(f"{len(offsets)} orders: {dict(zip(*items.to_pydict().values(), strict=True))}")


if __name__ == "__main__":
    with run_nats_server(jetstream=True) as server, tempfile.TemporaryDirectory() as place:
        main(server.url, Path(place))
