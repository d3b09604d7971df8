"""A slice of the campaign that kills writers of tables: ``make soak`` kills hundreds."""

from __future__ import annotations

import pytest

from tests.faults.table_kills import run

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(("make", "payload"), [("iceberg", None), ("delta", None), ("delta", "arrow")])
def test_killed_writers_leave_each_row_once(make: str, payload: str | None) -> None:
    assert run(make, kills=4, seed=1, payload=payload) == []
