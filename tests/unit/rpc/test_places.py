"""The connection that makes room for a new one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from liftenvelope.rpc.places import ConnectionPlaces, client_of, place_to_free


@dataclass(eq=False)
class Held:
    """A connection of a client."""

    client: str
    active_at: float = 0.0
    is_idle: bool = True
    standing: int = 2
    given_up: bool = False
    address: str = ""

    def __post_init__(self) -> None:
        self.address = self.address or self.client

    def give_up(self) -> None:
        self.given_up = True


def test_client_with_most_places_gives_up_the_one_silent_for_longest() -> None:
    greedy = [Held("a", 2.0), Held("a", 1.0), Held("a", 3.0, is_idle=False)]
    assert place_to_free([Held("b", 0.0), *greedy], "c") is greedy[1]


def test_connections_without_a_call_ever_go_before_those_that_had_one() -> None:
    served, greeted, silent = Held("a", 1.0), Held("a", 2.0, standing=1), Held("a", 3.0, standing=0)
    assert place_to_free([served, greeted, silent], "a") is silent
    assert place_to_free([served, greeted], "a") is greeted


def test_busy_connection_goes_only_for_a_client_with_two_places_fewer() -> None:
    busy = [Held("a", float(number), is_idle=False) for number in range(3)]
    assert place_to_free([*busy, Held("b", is_idle=False)], "b") is busy[0]
    assert place_to_free([*busy, Held("b"), Held("b")], "b") is None
    assert place_to_free(busy, "a") is None


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]])
def test_clients_with_certificates_and_equal_need_take_no_places_from_each_other(
    addresses: list[str],
) -> None:
    busy = [
        Held(client, is_idle=False, address=address)
        for client, address in zip(("ann", "bob"), 2 * addresses, strict=False)
        for _ in range(3)
    ]
    for address in addresses:
        assert place_to_free(busy, address) is None


def test_clients_that_share_a_certificate_take_no_places_from_each_other() -> None:
    pods = [Held("ann", is_idle=False, address=f"10.0.0.{number}") for number in range(9)]
    assert place_to_free(pods, "10.0.0.9") is None


def test_busy_connection_goes_if_its_client_and_its_address_have_many() -> None:
    crowd = [Held(f"{number}", is_idle=False, address="10.0.0.1") for number in range(9)]
    assert place_to_free(crowd, "10.0.0.2") is None
    greedy = [Held("ann", float(number), is_idle=False, address="10.0.0.1") for number in range(3)]
    assert place_to_free([*crowd, *greedy], "10.0.0.2") is greedy[0]
    apart = Held("ann", -1.0, is_idle=False, address="10.0.0.3")
    assert place_to_free([apart, *greedy], "10.0.0.2") is greedy[0]


def test_connections_without_a_frame_go_before_busy_ones_of_any_client() -> None:
    busy = [Held("a", is_idle=False) for _ in range(3)]
    silent = [Held("b", 2.0, standing=0), Held("c", 1.0, standing=0)]
    greeted = Held("d", standing=1)
    assert place_to_free([*busy, *silent, greeted], "e") is silent[1]
    assert place_to_free([*busy, greeted], "e") is busy[0]
    assert place_to_free([*busy, *silent], "a") is None


def test_silent_connection_of_a_modest_client_stays() -> None:
    busy = [Held("a", is_idle=False), Held("a", is_idle=False)]
    assert place_to_free([*busy, Held("b")], "a") is None


def test_place_is_freed_only_when_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    links = {Held("a")}
    places = ConnectionPlaces(links, 2)
    assert places.admits("b", [])
    assert places.refused == 0
    opening = Held("b", standing=0)
    assert places.admits("b", [opening])
    assert (opening.given_up, places.refused) == (True, 1)
    (link,) = links
    assert not link.given_up
    link.is_idle = False
    assert not places.admits("a", [Held("b", is_idle=False)])
    assert [record.message for record in caplog.records] == [
        "a connection was closed: as many are open as the limits allow"
    ]


@pytest.mark.parametrize(
    ("peer", "certificate", "client"),
    [
        (("127.0.0.1", 4222), None, "127.0.0.1"),
        (("127.0.0.1", 4222), {}, "127.0.0.1"),
        (("2001:db8:1:2:3::4", 4222, 0, 0), None, "2001:db8:1:2::"),
        (("fe80::1%eth0", 4222, 0, 2), None, "fe80::1%eth0"),
        ("", None, ""),
        (None, None, ""),
        (("127.0.0.1", 4222), {"subject": ((("commonName", "app"),),)}, "((('commonName', 'app'),),)"),
    ],
)
def test_client_is_the_certificate_or_the_address(
    peer: object, certificate: dict[str, object] | None, client: str
) -> None:
    assert client_of(peer, certificate) == client
