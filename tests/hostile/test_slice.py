"""A slice of the attacks: each on a gateway, with few pieces. ``make soak`` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.hostile.attacking import Extent
from tests.hostile.attacks import Attack
from tests.hostile.clients_running import SERVERS
from tests.hostile.running import Victim, run_attack
from tests.hostile.tables import GATEWAY
from tests.hostile.tls import Certificates

#: Each connection once, with so many pieces where the victim does not close it.
SLICE: Final = Extent(seconds=0, pieces=100, connections=3)


def is_silent(row: Attack) -> bool:
    """Whether the victim closes its connections only after a time-out."""
    return row.repeat is None and row.must.close is True and len(row.begin) <= 24 and row.tls in ("", "plain")


SILENT: Final = [row for row in GATEWAY if is_silent(row)]
PLAIN: Final = [row for row in GATEWAY if not row.tls and row not in SILENT]
SECURED: Final = [row for row in GATEWAY if row.tls and row not in SILENT]
#: Hostile servers whose clients fail at once, not by a time-out.
QUICK: Final = [row for row in SERVERS if row.name.startswith(("jetstream answers: ", "acks: "))]


def name_of(row: Attack) -> str:
    return row.name


@pytest.fixture(scope="module")
def plain() -> Iterator[Victim]:
    with Victim() as victim:
        yield victim


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with Victim(Certificates(tmp_path_factory.mktemp("tls"))) as victim:
        yield victim


@pytest.mark.parametrize("row", PLAIN, ids=name_of)
def test_gateway_withstands(plain: Victim, row: Attack) -> None:
    assert run_attack(plain, row, SLICE).faults == []


@pytest.mark.parametrize("row", SECURED, ids=name_of)
def test_gateway_with_tls_and_policy_withstands(secured: Victim, row: Attack) -> None:
    assert run_attack(secured, row, SLICE).faults == []


def test_silent_connections_are_closed(plain: Victim, secured: Victim) -> None:
    with ThreadPoolExecutor(len(SILENT)) as threads:
        victims = [secured if row.tls else plain for row in SILENT]
        done = threads.map(
            lambda pair: run_attack(pair[0], pair[1], SLICE), zip(victims, SILENT, strict=True)
        )
        assert [figures.faults for figures in done if figures.faults] == []
