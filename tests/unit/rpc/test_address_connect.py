"""Connecting to a host with several IP addresses. Silent ones are fakes that pass the time they are given."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from liftenvelope.rpc import address as addresses
from liftenvelope.rpc.address import Address, attempts, connect, connect_async

HOST = Address("host.test", 9292)
SILENT = ("192.0.2.1", 9292)  # reserved for documentation (RFC 5737)


class SilentSocket(socket.socket):
    """Socket that gets no answer from the silent address, and notes the seconds it waited."""

    waited: ClassVar[list[float]] = []

    def connect(self, target: Any) -> None:
        if target != SILENT:
            super().connect(target)
            return
        given = self.gettimeout()
        assert given is not None
        self.waited.append(given)
        raise TimeoutError("timed out")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were spent on each silent address. Every wait moves the clock."""
    spent: list[float] = []
    monkeypatch.setattr(SilentSocket, "waited", spent)
    monkeypatch.setattr(socket, "socket", SilentSocket)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + sum(spent))
    return spent


@pytest.fixture
def listening() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *targets: tuple[str, int]) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", target) for target in targets]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)


def test_all_addresses_of_a_host_share_the_timeout(
    monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    resolve_to(monkeypatch, SILENT, SILENT, SILENT)
    with pytest.raises(TimeoutError):
        connect(HOST, 6.0)
    assert waits == [2.0, 2.0, 2.0]


def test_silent_address_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], listening: tuple[str, int]
) -> None:
    resolve_to(monkeypatch, SILENT, listening)
    with connect(HOST, 60.0) as connection:
        assert connection.getpeername() == listening
    assert waits == [30.0]


def test_error_of_the_last_address_is_raised(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nothing listens
        resolve_to(monkeypatch, SILENT, unused.getsockname())
        with pytest.raises(ConnectionRefusedError):
            connect(HOST, 60.0)
    assert len(waits) == 1


def test_host_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch)
    with pytest.raises(OSError, match=r"host\.test has no IP address"):
        connect(HOST, 1.0)


def test_silent_address_leaves_time_for_the_next_in_asyncio(
    monkeypatch: pytest.MonkeyPatch, listening: tuple[str, int]
) -> None:
    given: list[float] = []

    def hurried(*args: Any) -> Iterator[tuple[socket.socket, Any, float]]:
        for connection, target, seconds in attempts(*args):
            given.append(seconds)
            yield connection, target, 0.01 if target == SILENT else seconds

    async def connect_in_a_loop() -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        real = loop.sock_connect

        async def sock_connect(connection: socket.socket, target: Any) -> None:
            await (loop.create_future() if target == SILENT else real(connection, target))

        monkeypatch.setattr(loop, "sock_connect", sock_connect)
        with await connect_async(HOST, 600.0) as connection:
            peer: tuple[str, int] = connection.getpeername()
            return peer

    resolve_to(monkeypatch, SILENT, listening)
    monkeypatch.setattr(addresses, "attempts", hurried)
    assert asyncio.run(connect_in_a_loop()) == listening
    assert 200.0 < given[0] <= 300.0 < given[1] <= 600.0


class SocketWithoutIpv6(socket.socket):
    """Socket of a system without IPv6: a fake, because most systems have it."""

    def __init__(self, family: int = -1, *args: Any, **options: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *args, **options)


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """An IPv6 address as ``getaddrinfo`` gives it."""
    monkeypatch.setattr(socket, "socket", SocketWithoutIpv6)
    return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 9292, 0, 0)


def test_address_of_a_family_that_the_system_lacks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, without_ipv6: tuple[Any, ...], listening: tuple[str, int]
) -> None:
    other = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", listening)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: [without_ipv6, other])
    with connect(HOST, 60.0) as connection:
        assert connection.getpeername() == listening
    with asyncio.run(connect_async(HOST, 60.0)) as connection:
        assert connection.getpeername() == listening


def test_no_address_of_a_family_that_the_system_has(
    monkeypatch: pytest.MonkeyPatch, without_ipv6: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: [without_ipv6])
    with pytest.raises(OSError, match="Address family not supported"):
        connect(HOST, 60.0)
