"""A slice: every attack on a gateway, with few pieces, and some on clients. ``make soak`` runs all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.hostile.attacking import Extent
from tests.hostile.attacks import Attack
from tests.hostile.clients_running import SERVERS, ClientVictims
from tests.hostile.hostile_servers import HostileServer
from tests.hostile.running import Victim, run_attack
from tests.hostile.tables import GATEWAY
from tests.hostile.tls import Certificates

#: Each connection once, with so many pieces where the victim does not close it.
SLICE: Final = Extent(seconds=0, pieces=50, connections=2)
#: Seconds between the publishes of a bystander that must be served, and whose latency is not judged.
PAUSE: Final = 0.03


def is_silent(row: Attack) -> bool:
    """Return True if the victim closes its connections only after a timeout."""
    return row.repeat is None and row.must.close is True and len(row.begin) <= 24 and row.tls in ("", "plain")


SILENT: Final = [row for row in GATEWAY if is_silent(row)]
PLAIN: Final = [row for row in GATEWAY if not row.tls and row not in SILENT]
SECURED: Final = [row for row in GATEWAY if row.tls and row not in SILENT]
#: Hostile servers whose clients fail at once, not by a time-out.
SERVERS_OF_SLICE: Final = (
    "nats greets: INFO number of 5,000 digits",
    "nats greets: HTTP/1.1",
    "nats greets: max_payload of text",
    "nats greets: endless line",
    "nats claims before login: message of 5 GB",
    "nats claims after login: negative message",
    "grpc floods: settings",
    "grpc answers: prefix of 4 GiB",
    "grpc answers: compressed",
    "grpc answers: status of 500 digits",
    "grpc answers: text of junk",
    "grpc answers later: junk message",
    "grpc answers later: nested groups",
    "grpc tells: port 70,000",
    "grpc tells: host of junk",
)
CALLS: Final = [(row, call) for row in SERVERS if row.name in SERVERS_OF_SLICE for call in row.calls]


def name_of(row: Attack) -> str:
    return row.name


@pytest.fixture(scope="module")
def plain() -> Iterator[Victim]:
    with Victim(pause=PAUSE) as victim:
        yield victim


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with Victim(Certificates(tmp_path_factory.mktemp("tls")), pause=PAUSE) as victim:
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


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientVictims]:
    with ClientVictims() as victims:
        yield victims


@pytest.mark.parametrize(("row", "call"), CALLS, ids=[f"{row.name}: {call}" for row, call in CALLS])
def test_client_withstands(clients: ClientVictims, row: HostileServer, call: str) -> None:
    figures = clients.attack(row, call, patience=240)
    assert figures.faults == []
    assert figures.error or call == "client metadata"


def test_every_server_of_the_slice_exists() -> None:
    assert {row.name for row, _ in CALLS} == set(SERVERS_OF_SLICE)
