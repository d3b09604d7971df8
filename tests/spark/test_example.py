"""The example that needs Spark, and the text that Spark reads of our schemas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from liftenvelope.spark._columns import ENVELOPE_DDL, ENVELOPE_TYPE
from liftenvelope.spark._schema import RowOptions, spark_ddl, spark_schema

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
def test_pipeline(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_pipeline.py")],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "1,000 readings are stored"
    assert {line.split(" ")[0] for line in lines[1:]} == {f"sensor-{i}" for i in range(5)}


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("envelope", ["none", "columns"])
def test_schemas_agree(spark: SparkSession, headers: bool, envelope: str) -> None:
    read = StructType.fromDDL(spark_ddl(RowOptions(headers=headers, envelope=envelope)))
    assert to_arrow_schema(read, timezone="UTC") == spark_schema(
        RowOptions(headers=headers, envelope=envelope)
    )


def test_envelopes_agree(spark: SparkSession) -> None:
    fields = to_arrow_schema(StructType.fromDDL(ENVELOPE_DDL), timezone="UTC")
    assert [(field.name, field.type) for field in fields] == [
        (field.name, field.type) for field in ENVELOPE_TYPE
    ]
