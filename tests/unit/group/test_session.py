"""A member's session: when it asks, and until when its partitions are its own."""

from __future__ import annotations

import pytest

from liftenvelope.group._member.session import MemberRequest, MemberSession, RequestKind


@pytest.fixture
def inside() -> MemberSession:
    """Registered in generation 3 at second 0, with a session of 10 s."""
    session = MemberSession()
    session.registered(3, 10.0, sent_at=0.0, now=0.0)
    return session


def test_session_registers_then_sends_heartbeats(inside: MemberSession) -> None:
    assert MemberSession().next(0.0) == MemberRequest(RequestKind.REGISTER, 0.0)
    assert inside.next(0.0) == MemberRequest(RequestKind.HEARTBEAT, 3.0)
    inside.beaten(sent_at=3.0, now=3.5)
    assert inside.next(3.5) == MemberRequest(RequestKind.HEARTBEAT, 3.0)
    assert inside.until_expiry(3.5) == 9.5
    inside.hurry(4.0)
    assert inside.next(4.0).wait == 0.0


def test_the_first_heartbeat_may_come_sooner() -> None:
    session = MemberSession(phase=0.5)
    session.registered(1, 10.0, sent_at=0.0, now=0.0)
    assert session.next(0.0).wait == 1.5
    session.beaten(sent_at=1.5, now=1.5)
    assert session.next(1.5).wait == 3.0


def test_members_that_ask_at_once_go_apart() -> None:
    parts = iter([0.9, 0.8])
    session = MemberSession(vary=lambda: next(parts))
    session.registered(1, 10.0, sent_at=0.0, now=0.0)
    assert session.next(0.0).wait == 3.0
    session.beaten(sent_at=3.0, now=3.0)
    assert session.next(3.0).wait == pytest.approx(2.4)


def test_ownership_counts_from_the_request(inside: MemberSession) -> None:
    inside.beaten(sent_at=3.0, now=9.0)
    assert inside.owns(12.9)
    assert not inside.owns(13.0)
    inside.beaten(sent_at=2.0, now=9.0)  # an older answer takes nothing back
    assert inside.owns(12.9)


def test_silence_ends_it(inside: MemberSession) -> None:
    inside.unanswered(5.0)
    assert not inside.expires(9.9)
    assert inside.expires(10.0)
    assert not inside.expires(10.0)
    assert inside.next(10.0).do is RequestKind.REGISTER
    assert inside.generation == 0
    assert inside.until_expiry(10.0) == float("inf")


def test_giving_back(inside: MemberSession) -> None:
    assert inside.rebalances(3.0)
    assert not inside.rebalances(6.0)  # no news, and no longer a life
    assert inside.is_leaving
    assert inside.owns(9.9)
    assert not inside.owns(10.0)
    inside.given_back(7.0)
    assert inside.next(7.0) == MemberRequest(RequestKind.REGISTER, 0.0)
    assert inside.generation == 3
    inside.waits(3, 10.0, 7.0)
    assert 0 < inside.next(7.0).wait < 0.1
    inside.waits(0, 10.0, 7.0)
    assert inside.next(7.0).wait == 0.0
    assert inside.generation == 0


def test_being_fenced(inside: MemberSession) -> None:
    inside.rebalances(1.0)
    assert inside.fenced(2.0)
    assert not inside.owns(2.0)
    assert inside.next(2.0) == MemberRequest(RequestKind.REGISTER, 0.0)
    inside.given_back(3.0)  # too late, and no harm
    assert inside.next(3.0).do is RequestKind.REGISTER
    assert not inside.fenced(3.0)
    assert inside.next(3.0).wait > 0.0


def test_the_more_often_it_fails_the_longer_it_waits() -> None:
    session = MemberSession()
    waits = []
    for _ in range(12):
        session.unanswered(0.0)
        waits.append(session.next(0.0).wait)
    assert waits == sorted(waits)
    assert waits[0] == 0.02
    assert waits[-1] == 0.5
