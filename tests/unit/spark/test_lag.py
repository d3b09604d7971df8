"""Lag from the progress of a query, as PySpark gives it and as it should not be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.spark import PartitionLag, lag
from liftenvelope.spark._offsets import Offsets, Position

DONE: Offsets = {("orders", 0): 100, ("orders", 1): 80}
ENDS: Offsets = {("orders", 0): 120, ("orders", 1): 80}
KAFKA = {"endOffset": {"orders": {"0": 23}}, "latestOffset": {"orders": {"0": 24}}}


def source(done: Offsets, ends: Offsets) -> dict[str, Any]:
    return {"endOffset": Position(done, {}).to_json(), "latestOffset": Position(ends, ends).to_json()}


def test_lag_has_a_row_for_each_partition() -> None:
    assert lag({"sources": [source(DONE, ENDS)]}) == [
        PartitionLag(0, "orders", 0, 100, 120, 20),
        PartitionLag(0, "orders", 1, 80, 80, 0),
    ]


def test_lag_reads_offsets_that_pyspark_gives_as_text() -> None:
    found = source(DONE, ENDS)
    texts = {name: json.dumps(value) for name, value in found.items()}
    assert lag({"sources": [texts]}) == lag({"sources": [found]})


def test_lag_leaves_sources_of_other_packages_out_and_keeps_indexes() -> None:
    found = lag({"sources": [KAFKA, source(DONE, ENDS), source(ENDS, ENDS)]})
    assert [(row.source, row.rows) for row in found] == [(1, 20), (1, 0), (2, 0), (2, 0)]


def test_lag_of_a_new_partition_counts_from_zero_and_deleted_ones_are_left_out() -> None:
    found = lag({"sources": [source({("gone", 0): 5}, {("new", 0): 7})]})
    assert found == [PartitionLag(0, "new", 0, 0, 7, 7)]


def test_lag_is_never_negative() -> None:
    assert [row.rows for row in lag({"sources": [source(ENDS, DONE)]})] == [0, 0]


@pytest.mark.parametrize("given", [None, "text", [], 7])
def test_lag_of_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(UsageTypeError, match="progress must be a StreamingQueryProgress or its dict, got"):
        lag(given)


@pytest.mark.parametrize("given", [{}, {"sources": None}, {"sources": "text"}, {"sources": [1]}])
def test_lag_without_a_list_of_sources_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="progress must have a list of sources, got"):
        lag(given)


@pytest.mark.parametrize(
    "end", [None, "None", "null", "{", "[" * 100_000, 7, {"orders": {"0": 23}}, {"v": 1}, {"offsets": {}}]
)
def test_lag_without_an_own_source_is_refused(end: object) -> None:
    with pytest.raises(UsageError, match="progress must have a source 'liftbridge' or 'jetstream', got none"):
        lag({"sources": [{"endOffset": end, "latestOffset": end}]})


@pytest.mark.parametrize(
    "latest",
    [
        None,
        "null",
        {"v": 2, "offsets": {}, "from": {}},
        {"v": 1, "offsets": {"orders": {"x": 1}}, "from": {}},
        {"v": 1, "offsets": {"orders": {"0": -1}}, "from": {}},
        {"v": 1, "offsets": {"orders": [1]}, "from": {}},
        {"v": 1, "offsets": {"orders" * 1_000: None}, "from": {}},
    ],
)
def test_lag_of_malformed_offsets_is_refused_with_a_short_text(latest: object) -> None:
    found = {**source(DONE, ENDS), "latestOffset": latest}
    with pytest.raises(UsageError, match="progress: latestOffset of source 1 must be") as caught:
        lag({"sources": [KAFKA, found]})
    assert len(str(caught.value)) < 400
