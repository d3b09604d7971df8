"""Pending bytes of clients: the limit, the order of waiting, and what cancelled requests give back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftenvelope.gateway._clients.pending import Held, PendingBytes, Shortage
from liftenvelope.gateway._clients.quotas import Quotas
from liftenvelope.gateway.limits import Limits
from liftenvelope.rpc.status import RpcError


async def waiting(held: Held, size: int) -> asyncio.Task[None]:
    """A task that waits for room."""
    task = asyncio.create_task(held.add(size))
    await asyncio.sleep(0)
    return task


def test_limit_is_exact_and_of_each_client() -> None:
    pending = PendingBytes(100, 1_000)
    one, other = pending.of("one"), pending.of("other")
    assert one.add_now(99)
    assert one.add_now(1)
    assert not pending.of("one").add_now(1)
    assert other.add_now(100)
    assert (pending.used("one"), pending.used("other"), pending.used("nobody")) == (100, 100, 0)


def test_all_clients_together_have_a_limit() -> None:
    pending = PendingBytes(100, 150)
    one, other = pending.of("one"), pending.of("other")
    assert one.add_now(100)
    assert not other.add_now(51)
    assert pending.used("other") == 0
    assert other.add_now(50)
    assert pending.in_all == 150
    one.shrink(0)
    assert pending.of("third").add_now(100)
    assert pending.in_all == 150


async def test_room_among_all_clients_is_given_in_the_order_of_waiting() -> None:
    pending = PendingBytes(100, 150)
    one, other = pending.of("one"), pending.of("other")
    one.add_now(100)
    other.add_now(50)
    third = await waiting(pending.of("third"), 60)
    fourth = await waiting(pending.of("fourth"), 10)
    assert pending.used("third") == 60
    other.shrink(0)
    await asyncio.sleep(0)
    assert not third.done()
    assert not fourth.done()
    assert not pending.of("fifth").add_now(1)
    fourth.cancel()
    await asyncio.gather(fourth, return_exceptions=True)
    assert pending.used("fourth") == 0
    one.shrink(0)
    await third
    assert pending.in_all == 60
    assert pending.of("fifth").add_now(90)


async def test_requests_that_can_not_wait_overtake_with_as_many_bytes_as_all_may_hold() -> None:
    pending = PendingBytes(100, 150)
    one, other = pending.of("one"), pending.of("other")
    one.add_now(100)
    third = await waiting(pending.of("third"), 60)
    for _ in range(15):
        assert other.add_or_refuse(10) is None
        other.shrink(0)
    assert other.add_or_refuse(10) == Shortage(True, 100, True)
    assert pending.used("other") == 0
    one.shrink(0)
    await third
    fourth = await waiting(pending.of("fourth"), 95)
    assert other.add_or_refuse(10) is None
    assert other.add_or_refuse(85) == Shortage(True, 70, False)
    assert other.add_or_refuse(100) == Shortage(False, 10, False)
    fourth.cancel()


async def test_own_call_that_waits_keeps_the_room_of_its_client() -> None:
    pending = PendingBytes(100, 1_000)
    held = pending.of("one")
    held.add_now(90)
    waits = await waiting(pending.of("one"), 20)
    assert pending.of("one").add_or_refuse(1) == Shortage(False, 90, True)
    waits.cancel()


async def test_error_names_the_budget_that_refused() -> None:
    quotas = Quotas(Limits(max_pending_bytes_per_client=100, max_pending_bytes=100))
    calls = [SimpleNamespace(peer_certificate=None, client=address) for address in ("", "1.2.3.4")]
    unnamed, other = cast(list[Any], calls)
    held = quotas.hold(unnamed, 90)
    with pytest.raises(RpcError, match=r": quota of clients without a certificate used up: 90 bytes"):
        quotas.hold(unnamed, 20)
    waits = await waiting(quotas.pending(other), 20)
    for _ in range(10):
        quotas.hold(unnamed, 10).shrink(0)
    with pytest.raises(
        RpcError, match=r"quota of all clients used up: 90 .*, others waiting for room, and 1 "
    ):
        quotas.hold(unnamed, 1)
    waits.cancel()
    del held


def test_larger_request_fits_alone() -> None:
    pending = PendingBytes(100, 1_000)
    with pending.of("one") as large:
        assert large.add_now(101)
        assert not pending.of("one").add_now(1)
    with pending.of("one") as small:
        assert small.add_now(1)
        assert not pending.of("one").add_now(101)


def test_leaving_gives_back_what_is_held() -> None:
    pending = PendingBytes(100, 1_000)
    with pending.of("one") as held:
        held.add_now(80)
        held.shrink(30)
        assert pending.used("one") == 30
        part = held.split(10)
    assert pending.used("one") == part.size == 10


async def test_bytes_are_kept_until_a_future_is_done() -> None:
    pending = PendingBytes(100, 1_000)
    for is_cancelled in (False, True):
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pending.of("one") as held:
            held.add_now(80)
            held.keep_until(future)
        assert pending.used("one") == 80
        if is_cancelled:
            future.cancel()
        else:
            future.set_result(None)
        await asyncio.sleep(0)
        assert pending.used("one") == 0


async def test_room_is_given_in_the_order_of_waiting() -> None:
    pending = PendingBytes(100, 1_000)
    held = pending.of("one")
    held.add_now(100)
    large, small = await waiting(pending.of("one"), 60), await waiting(pending.of("one"), 1)
    held.shrink(50)
    await asyncio.sleep(0)
    # The small request would fit, but does not overtake.
    assert not large.done()
    assert not small.done()
    assert not pending.of("one").add_now(1)
    held.shrink(39)
    await asyncio.gather(large, small)
    assert pending.used("one") == 100


async def test_cancelled_request_takes_no_room() -> None:
    pending = PendingBytes(100, 1_000)
    held = pending.of("one")
    held.add_now(100)
    first, second = await waiting(pending.of("one"), 100), await waiting(pending.of("one"), 100)
    first.cancel()
    held.shrink(0)
    await second
    assert first.cancelled()
    assert pending.used("one") == 100


async def test_request_cancelled_after_it_got_room_gives_it_back() -> None:
    pending = PendingBytes(100, 1_000)
    held = pending.of("one")
    held.add_now(100)
    first, second = await waiting(pending.of("one"), 100), await waiting(pending.of("one"), 100)
    held.shrink(0)  # the first has the room now, and does not run before it is cancelled
    first.cancel()
    await second
    assert first.cancelled()
    assert pending.used("one") == 100


def test_clients_without_pending_bytes_are_forgotten() -> None:
    pending = PendingBytes(100, 1_000)
    for number in range(1_000):
        with pending.of(f"client {number}") as held:
            assert held.add_now(1)
        assert pending.used(f"client {number}") == 0
        del held
    assert len(pending) == 0
