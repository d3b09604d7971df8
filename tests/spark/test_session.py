"""Sessions that are started as docs/spark.md shows, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import make_stream
from tests.integration.project.test_examples import ROOT, blocks

pytestmark = pytest.mark.timeout(900)

#: Reads as a source and as a function of Python, with the session of the first block of the page.
READ = """
import sys
from pyspark.sql.functions import expr
from liftenvelope.spark.functions import to_envelope

spark.sparkContext.setLogLevel("OFF")
rows = spark.read.format("jetstream").option("servers", sys.argv[1]).load(sys.argv[2])
envelopes = rows.select(to_envelope(expr("struct(value)")).alias("value"))
print([bytes(row.value) for row in envelopes.selectExpr("from_envelope(value).value as value").collect()])
spark.stop()
"""


def test_workers_of_an_environment_that_is_not_activated(nats: NatsServer, name: str, tmp_path: Path) -> None:
    """The ``python3`` of PATH is another one, which can't even start."""
    make_stream(nats.url, name)
    bulk.write(nats.url, name, pa.table({"value": [b"tea", b"milk"]}), subject=f"{name}.x")
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    session = next(block for block in blocks(ROOT / "docs" / "spark.md") if block.info == "python spark")
    script = tmp_path / "session.py"
    script.write_text(session.text + READ)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(program.parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYSPARK_PYTHON", None)
    environment.pop("PYSPARK_DRIVER_PYTHON", None)
    done = subprocess.run(
        [sys.executable, script, nats.url, name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[b'tea', b'milk']"
