"""The place of a consumer in its group, without any server: what it does next after which answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import liftenvelope
from liftenvelope.client._consuming.member import ConsumerMember
from liftenvelope.client._consuming.membership import Action, Change, Do, Membership
from liftenvelope.client.failures import call_error
from liftenvelope.client.partition_read import GroupIdentity
from liftenvelope.errors import AlreadyMemberError, FencedError, GroupError, NotMemberError, UsageError
from liftenvelope.rpc.status import RpcError, StatusCode

A, B, C = ("orders", 0), ("orders", 1), ("orders", 2)


def joined(now: float = 0.0) -> Membership:
    member = Membership()
    member.joined("n1", 0, 15.0, 10.0, now=now)
    return member


def settled(*partitions: tuple[str, int], now: float = 0.0) -> Membership:
    member = joined(now)
    member.assigned(0, partitions or (A, B), now=now)
    return member


class TestJoin:
    def test_at_once_and_then_the_assignment(self) -> None:
        member = Membership()
        assert member.next(5.0) == Action(Do.JOIN)
        member.joined("n1", 7, 15.0, 10.0, now=5.0)
        assert (member.coordinator, member.epoch, member.is_member) == ("n1", 7, True)
        assert member.next(5.0) == Action(Do.HEARTBEAT)
        assert not member.is_settled
        assert member.assigned(7, [B, A], now=5.5) == Change(assigned=(A, B))
        assert member.is_settled

    def test_a_member_from_before_is_thrown_out_first(self) -> None:
        member = Membership()
        member.join_unclear(now=0.0)
        assert member.next(1.0) == Action(Do.LEAVE)
        member.left(now=1.0)
        assert member.next(1.0) == Action(Do.JOIN)

    def test_pauses_grow(self) -> None:
        member = Membership()
        waits = []
        for _ in range(10):
            member.join_failed(now=0.0)
            waits.append(member.next(0.0).wait)
        assert waits == sorted(waits)
        assert 0 < waits[0] < 0.1
        assert waits[-1] == 1.0

    def test_servers_that_have_not_heard_of_the_join_yet(self) -> None:
        member = joined()
        assert not member.not_member(now=0.1)
        assert member.next(0.2).do is Do.HEARTBEAT
        member.moved(now=0.2)
        assert member.next(0.2).do is Do.LOCATE
        assert member.not_member(now=3.0).expired


class TestHeartbeat:
    def test_at_two_fifths_of_the_timeout(self) -> None:
        member = settled(now=100.0)
        assert member.next(100.0) == Action(Do.HEARTBEAT, 6.0)
        assert member.next(106.0) == Action(Do.HEARTBEAT)

    def test_short_timeouts(self) -> None:
        member = Membership()
        member.joined("n1", 0, 3.0, 3.0, now=0.0)
        member.assigned(0, [], now=0.0)
        assert member.next(0.0).wait == pytest.approx(1.2)

    def test_nothing_new(self) -> None:
        assert not settled().assigned(0, [A, B], now=1.0)

    def test_what_did_not_move_stays(self) -> None:
        member = settled(A, B)
        assert member.assigned(5, [B, C], now=1.0) == Change(assigned=(C,), revoked=(A,))
        assert member.epoch == 5
        assert member.assignment == {B, C}

    def test_another_epoch_is_acted_on_at_once(self) -> None:
        member = settled()
        member.moved(now=6.0)
        assert member.next(6.0) == Action(Do.LOCATE)
        member.located("n2", 9, now=6.0)
        assert member.next(6.0) == Action(Do.HEARTBEAT)
        assert (member.coordinator, member.epoch) == ("n2", 9)

    def test_partitions_are_read_in_the_epoch_that_gave_them(self) -> None:
        # With one that was only heard of, servers would fence off whoever has the partition in that epoch.
        member = settled(A)
        member.moved(now=6.0)
        member.located("n2", 9, now=6.0)
        assert (member.epoch, member.assigned_epoch) == (9, 0)
        member.assigned(9, [A], now=6.1)
        assert member.assigned_epoch == 9

    async def test_a_partition_that_is_gone_is_not_read(self) -> None:
        # Stands in for the client: no call is made.
        context: Any = SimpleNamespace(cluster=None, options=SimpleNamespace(notify=None))
        member = ConsumerMember(context, "g", "me", ["orders"])
        member.state = settled(A)
        member.state.assigned(3, [A], now=1.0)
        assert member.identity(A) == GroupIdentity("g", 3, "me")
        with pytest.raises(FencedError, match=r"orders\[1\] is no longer assigned to consumer 'me'"):
            member.identity(B)

    def test_a_server_that_is_behind_makes_no_hot_loop(self) -> None:
        member = settled()
        asked = 0
        now = 6.0
        while now < 7.0:
            action = member.next(now)
            now += action.wait
            if action.do is Do.LOCATE:
                member.located("n1", 0, now=now)
            else:
                asked += 1
                member.moved(now=now)
        assert 3 < asked < 12

    def test_an_earlier_epoch_is_taken_too(self) -> None:
        # A group that was made anew begins at 0 again.
        member = joined()
        member.assigned(40, [A], now=0.0)
        member.moved(now=1.0)
        member.located("n1", 0, now=1.0)
        assert member.epoch == 0

    def test_hurry(self) -> None:
        member = settled()
        member.hurry(now=0.5)
        assert member.next(0.5) == Action(Do.HEARTBEAT)

    def test_expiry_takes_everything_and_joins_anew(self) -> None:
        member = settled()
        assert member.not_member(now=20.0) == Change(revoked=(A, B), expired=True)
        assert not member.is_member
        assert not member.is_settled
        assert member.next(30.0).do is Do.JOIN
        member.joined("n1", 3, 15.0, 10.0, now=30.0)
        assert member.assigned(3, [A], now=30.0) == Change(assigned=(A,))


class TestCoordinator:
    def drive(self, member: Membership, now: float, until: float) -> list[Do]:
        """Answer nothing; return what was done."""
        done = []
        while now < until:
            action = member.next(now)
            now += action.wait
            done.append(action.do)
            match action.do:
                case Do.HEARTBEAT:
                    member.silent(now=now)
                case Do.LOCATE:
                    member.located("n1", 0, now=now)
                case _:
                    member.reported(now=now)
        return done

    def test_silence_keeps_the_partitions(self) -> None:
        member = settled()
        self.drive(member, 6.0, 60.0)
        assert member.assignment == {A, B}

    def test_is_reported_after_its_timeout_and_again_within_it(self) -> None:
        assert Do.REPORT not in self.drive(settled(), 6.0, 9.9)
        assert self.drive(settled(), 6.0, 12.0).count(Do.REPORT) == 1
        assert 4 <= self.drive(settled(), 6.0, 40.0).count(Do.REPORT) <= 7

    def test_is_asked_about_once_a_second_in_the_long_run(self) -> None:
        assert self.drive(settled(), 6.0, 66.0).count(Do.HEARTBEAT) <= 70

    def test_a_new_one_has_its_own_time(self) -> None:
        member = settled()
        self.drive(member, 6.0, 9.9)
        member.located("n2", 4, now=9.9)
        member.silent(now=10.5)
        assert member.next(12.0).do is Do.LOCATE

    def test_nobody_can_tell(self) -> None:
        member = settled()
        member.silent(now=6.0)
        member.not_located(now=6.1)
        action = member.next(6.1)
        assert action.do is Do.HEARTBEAT
        assert 0 < action.wait < 1

    def test_after_silence_all_is_as_before(self) -> None:
        member = settled()
        self.drive(member, 6.0, 9.0)
        assert member.next(9.0).wait < 1.0
        assert not member.assigned(0, [A, B], now=9.0)
        assert member.is_settled
        assert member.next(9.0).wait == 6.0


class MembershipMachine(RuleBasedStateMachine):
    """Any answers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.member = Membership()
        self.now = 0.0
        self.held: set[tuple[str, int]] = set()

    def apply(self, change: Change) -> None:
        assert set(change.revoked) <= self.held
        self.held -= set(change.revoked)
        assert self.held.isdisjoint(change.assigned)
        self.held |= set(change.assigned)
        assert not change.expired or not self.held

    @rule(outcome=st.integers(0, 5), partitions=st.sets(st.sampled_from([A, B, C])), epoch=st.integers(0, 9))
    def act(self, outcome: int, partitions: set[tuple[str, int]], epoch: int) -> None:
        member = self.member
        action = member.next(self.now)
        self.now += action.wait
        now = self.now
        match action.do:
            case Do.JOIN if outcome < 3:
                assert not self.held
                member.joined("n1", epoch, 15.0, 15.0, now=now)
            case Do.JOIN:
                member.join_unclear(now=now) if outcome == 3 else member.join_failed(now=now)
            case Do.LEAVE:
                member.left(now=now) if outcome < 3 else member.join_unclear(now=now)
            case Do.LOCATE:
                member.located("n2", epoch, now=now) if outcome < 3 else member.not_located(now=now)
            case Do.REPORT:
                member.reported(now=now)
            case Do.HEARTBEAT if outcome < 3:
                self.apply(member.assigned(epoch, partitions, now=now))
            case Do.HEARTBEAT if outcome == 3:
                self.apply(member.not_member(now=now))
            case Do.HEARTBEAT:
                member.moved(now=now) if outcome == 4 else member.silent(now=now)

    @rule(seconds=st.floats(0, 20))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def what_was_told_is_what_is(self) -> None:
        assert self.held == self.member.assignment

    @invariant()
    def only_members_have_partitions(self) -> None:
        assert self.member.is_member or not self.held

    @invariant()
    def nothing_is_put_off_for_longer_than_a_heartbeat(self) -> None:
        assert 0 <= self.member.next(self.now).wait <= self.member.interval + 1e-9


TestMembershipMachine = MembershipMachine.TestCase


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("consumer is already a member of the consumer group", AlreadyMemberError),
        ("consumer is not a member of the consumer group", NotMemberError),
        ("client-provided group epoch differs from broker group epoch", GroupError),
    ],
)
def test_refusals_are_told_apart(text: str, kind: type[Exception]) -> None:
    error = RpcError(StatusCode.FAILED_PRECONDITION, text)
    assert type(call_error("FetchConsumerGroupAssignments", error, "group 'g'")) is kind


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group": "a,b"}, "group must not have a comma, got 'a,b'"),
        ({"group": ""}, "group must not be empty, got ''"),
        ({"streams": []}, "streams"),
        ({"streams": 5}, "streams must be a str or an iterable of str, got int"),
        ({"streams": ["a,b"]}, "stream must not have a comma in its name to have cursors, got 'a,b'"),
        ({"consumer_id": ""}, "consumer_id must not be empty, got ''"),
        ({"auto_commit_interval": 0}, "auto_commit_interval must be a positive number of seconds, got 0"),
        ({"auto_offset": "oldest"}, "auto_offset must be one of .*, got 'oldest'"),
        ({"on_revoked": 5}, "on_revoked"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, object], text: str) -> None:
    client = liftenvelope.connect("127.0.0.1:1")
    with pytest.raises(UsageError, match=text):
        client.consumer(**{"group": "g", "streams": ["s"], **options})  # type: ignore[arg-type]


async def test_membership_that_is_not_open_is_refused() -> None:
    consumer = liftenvelope.connect("127.0.0.1:1").consumer("g", "s")
    assert consumer.assignment == frozenset()
    for use in (consumer.commit(), anext(consumer)):
        with pytest.raises(UsageError, match="not open"):
            await use
    await consumer.close()
