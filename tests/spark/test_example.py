"""The examples that need Spark, and the text that Spark reads of our schemas."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from liftenvelope.spark._columns import ENVELOPE_TYPE, envelope_ddl
from liftenvelope.spark._schema import RowOptions, spark_ddl, spark_schema
from tests.spark.examples import ROOT, run_program


def run_example(name: str, folder: Path) -> str:
    status, output = run_program(str(ROOT / "examples" / name), folder=folder)
    assert status == 0, output
    return output


@pytest.mark.timeout(900)
def test_pipeline(tmp_path: Path) -> None:
    lines = run_example("spark_pipeline.py", tmp_path).splitlines()
    assert "1,000 readings are stored" in lines
    sensors = {line.split(" ")[0] for line in lines if line.startswith("sensor-")}
    assert sensors == {f"sensor-{i}" for i in range(5)}


@pytest.mark.timeout(900)
def test_tables(tmp_path: Path) -> None:
    output = run_example("spark_tables.py", tmp_path)
    for rows in ("3,000", "5,000"):
        assert f"{rows} rows in the Delta table, {rows} in the Iceberg table" in output


@pytest.mark.timeout(900)
def test_declarative_pipeline(tmp_path: Path) -> None:
    output = run_example("spark_declarative.py", tmp_path)
    for orders in (300, 500):
        assert f"{orders} orders: {{'milk': {orders // 2}, 'tea': {orders // 2}}}" in output


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("envelope", ["none", "columns"])
def test_schemas_agree(spark: SparkSession, headers: bool, envelope: str) -> None:
    read = StructType.fromDDL(spark_ddl(RowOptions(headers=headers, envelope=envelope)))
    assert to_arrow_schema(read, timezone="UTC") == spark_schema(
        RowOptions(headers=headers, envelope=envelope)
    )


def test_envelopes_agree(spark: SparkSession) -> None:
    fields = to_arrow_schema(StructType.fromDDL(envelope_ddl(ENVELOPE_TYPE.names)), timezone="UTC")
    assert [(field.name, field.type) for field in fields] == [
        (field.name, field.type) for field in ENVELOPE_TYPE
    ]
