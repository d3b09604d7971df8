"""The pull core, step by step, with scripted statuses; statuses as nats-py gives them; options.

Numbers, texts and rests of the statuses were compared with nats-server: 408, 404, 400, 503, 100 and "Consumer
Deleted" captured from 2.15.1, the others read in the source of 2.15.2 (consumer.go, jetstream.go). Without a
rest are 409 "Leadership Change", "Consumer Deleted", "Exceeded ..." and 423 "Nats-Pin-Id mismatch".
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftenvelope.errors import PushConsumerError, UsageError
from liftenvelope.jetstream._consumer_config import ConsumerConfig, PriorityPolicy
from liftenvelope.jetstream._events import (
    LeadershipChanged,
    LimitExceeded,
    MessageTooLarge,
    MissedHeartbeats,
    NoResponders,
    Pinned,
    PullEvent,
    ServerShutdown,
    UnknownStatus,
    Unpinned,
)
from liftenvelope.jetstream._pulling.options import consume_plan, fetch_plan
from liftenvelope.jetstream._pulling.pull import Check, End, PullAction, PullCore, PullLimits, PullNow, Tell
from liftenvelope.jetstream.statuses import Status, StatusKind


def core_of(limit: int = 100, threshold: int = 50, **limits: Any) -> PullCore:
    core = PullCore(PullLimits(limit, threshold, **limits))
    core.start(0.0)
    return core


def did(core: PullCore) -> list[PullAction]:
    actions = list(core.actions)
    core.actions.clear()
    return actions


def told(core: PullCore) -> list[PullEvent]:
    return [action.event for action in did(core) if isinstance(action, Tell)]


def pulled(core: PullCore) -> list[int]:
    return [action.amount for action in did(core) if isinstance(action, PullNow)]


def read(core: PullCore, count: int, now: float = 1.0) -> None:
    for _ in range(count):
        core.arrived()
        if core.taken():
            core.refill(now)


class TestRefill:
    def test_to_the_limit_and_not_over(self) -> None:
        core = core_of()
        assert pulled(core) == [100]
        read(core, 50)
        assert pulled(core) == []
        read(core, 1)
        assert pulled(core) == [51]
        assert core.asked + core.buffered == 100

    def test_what_is_buffered_counts(self) -> None:
        core = core_of()
        did(core)
        for _ in range(100):
            core.arrived()
        core.refill(1.0)
        assert pulled(core) == []
        for _ in range(51):
            core.taken()
        core.refill(1.0)
        assert pulled(core) == [51]

    def test_no_more_than_stop_after_in_all(self) -> None:
        core = core_of(10, 10, stop_after=12)
        assert pulled(core) == [10]
        read(core, 9)
        assert pulled(core) == [1, 1]
        read(core, 1)
        core.reconnected(2.0)  # the two pulls are lost
        assert pulled(core) == [2]
        read(core, 2)
        assert pulled(core) == []

    def test_one_at_a_time_does_not_stall(self) -> None:
        core = core_of(1, 1)
        for _ in range(1000):
            assert pulled(core) == [1]
            core.arrived()
            assert core.taken()
            core.refill(1.0)

    @pytest.mark.parametrize(
        "status",
        [
            (408, "Request Timeout"),
            (404, "No Messages"),
            (409, "Batch Completed"),
            (408, "Request Timeout", 1),  # the server claims to have delivered the others
            (408, "Request Timeout", 0),
            (409, "Message Size Exceeds MaxBytes", 1),
            (423, "Nats-Wrong-Pin-Id"),
        ],
    )
    def test_pull_ended_at_once_without_a_message_is_followed_by_a_pause(self, status: Any) -> None:
        core, now, pulls = core_of(10, 10), 0.0, 0
        while now < 10 and pulls < 1_000:
            for action in did(core):
                if isinstance(action, PullNow):
                    pulls += 1
                    core.status(action.number, Status.of(*status), now)
            if not any(isinstance(action, PullNow) for action in core.actions):
                now = core.next_tick(now)
                core.tick(now)
        assert 5 <= pulls <= 12  # pauses of 0.05 s, doubled each time, of 5 s at most

    def test_pull_that_ended_early_after_its_messages_is_not_followed_by_a_pause(self) -> None:
        core = core_of(10, 10)
        did(core)
        for _ in range(3):
            core.arrived()
            core.taken()
        core.tick(0.5)
        assert pulled(core) == [3]
        core.status(1, Status.of(408, "Request Timeout", 7), 0.6)
        assert pulled(core) == [7]

    def test_thousands_of_cycles_do_not_drift(self) -> None:
        """Every pull ends by a status with another rest; half of them without headers."""
        core = core_of(10, 10, expires=0.1)  # no pull ends before its time
        for cycle in range(5000):
            (pull,) = [action for action in did(core) if isinstance(action, PullNow)]
            assert core.asked + core.buffered == 10
            for _ in range(count := cycle % pull.amount):
                core.arrived()
            if cycle % 2:
                core.status(pull.number, Status.of(408, "Request Timeout", pull.amount - count), cycle)
            else:
                core.status(pull.number, Status.of(409, "Leadership Change"), cycle)
                (check,) = [action for action in core.actions if isinstance(action, Check)]
                core.checked(check.number, True, cycle + 0.1)
            for _ in range(count):
                core.taken()
            did_pull = [action for action in core.actions if isinstance(action, PullNow)]
            if not did_pull or count:  # what was buffered left room for a second pull, which is not served
                for action in did_pull:
                    core.status(action.number, Status.of(408, "Request Timeout", action.amount), cycle + 0.2)
            core.actions[:] = [action for action in core.actions if isinstance(action, PullNow)][-1:]
        assert core.waiting <= 1


class TestStatuses:
    def test_a_refusal_pauses_longer_each_time(self) -> None:
        core, now, pauses = core_of(), 0.0, []
        for _ in range(12):
            (pull,) = [action for action in did(core) if isinstance(action, PullNow)]
            core.status(pull.number, Status.of(409, "Exceeded MaxWaiting"), now)
            assert told(core) == [LimitExceeded("Exceeded MaxWaiting")]
            last = now
            while not core.actions:
                last = core.next_tick(last)
                core.tick(last)
            pauses.append(last - now)
            now = last
        assert pauses[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
        assert pauses[-1] == pytest.approx(5.0)
        assert core.asked == 100

    def test_leadership_change_without_headers(self) -> None:
        core = core_of()
        did(core)
        read(core, 60)
        assert pulled(core) == [60 - 9]
        core.status(1, Status.of(409, "Leadership Change"), 1.0)
        core.status(2, Status.of(409, "Leadership Change"), 1.0)
        check = Check(3)
        assert did(core) == [
            Tell(LeadershipChanged()),
            check,
        ]  # once, and nothing is pulled before there is a new one
        assert core.asked == 0
        core.checked(check.number, True, 1.1)
        assert pulled(core) == [100]

    def test_server_shutdown(self) -> None:
        core = core_of()
        did(core)
        core.status(1, Status.of(409, "Server Shutdown", 100, 0), 1.0)
        assert told(core) == [ServerShutdown()]
        assert core.asked == 0

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (Status.of(409, "Consumer Deleted"), StatusKind.DELETED),
            (Status.of(409, "Consumer is push based"), StatusKind.PUSH),
            (Status.of(400, "Bad Request - heartbeat value too large"), StatusKind.BAD_REQUEST),
            (Status.of(412, "Required Api Level"), StatusKind.BAD_REQUEST),
        ],
    )
    def test_the_end(self, status: Status, kind: StatusKind) -> None:
        core = core_of()
        did(core)
        core.status(1, status, 1.0)
        core.status(1, status, 1.0)
        assert did(core) == [End(status)]
        assert status.kind is kind
        core.refill(2.0)
        assert did(core) == []

    def test_an_unknown_one_pauses(self) -> None:
        core = core_of()
        did(core)
        core.status(1, Status.of(418, "I'm a teapot"), 1.0)
        assert did(core) == [Tell(UnknownStatus(418, "I'm a teapot"))]
        core.tick(1.1)
        assert pulled(core) == [100]

    def test_nobody_answers_on_a_connection_that_served_before(self) -> None:
        core = core_of()
        did(core)
        core.status(1, Status.of(100, "Idle Heartbeat"), 1.0)
        core.status(1, Status.of(503), 2.0)
        check = Check(2)
        assert did(core) == [check, Tell(NoResponders())]
        core.checked(check.number, True, 2.1)
        assert pulled(core) == [100]
        core.status(3, Status.of(100), 3.0)
        core.status(3, Status.of(503), 4.0)
        core.checked(did(core)[0][0], False, 4.1)  # type: ignore[arg-type]
        assert isinstance(did(core)[0], End)

    def test_nobody_answers_yet_after_a_reconnect(self) -> None:
        core = core_of()
        core.status(1, Status.of(100), 1.0)
        core.reconnected(2.0)
        number = next(action.number for action in did(core)[::-1] if isinstance(action, PullNow))
        core.status(number, Status.of(503), 2.1)
        assert did(core) == [Tell(NoResponders())]

    def test_answers_of_an_older_check_are_ignored(self) -> None:
        core = core_of(check=True)
        core.reconnected(1.0)
        first = next(action for action in did(core) if isinstance(action, Check))
        core.reconnected(2.0)
        second = next(action for action in did(core) if isinstance(action, Check))
        core.checked(first.number, False, 2.1)
        assert did(core) == []  # and nothing is pulled before the answer that counts
        core.checked(second.number, True, 2.2)
        assert pulled(core) == [100]

    def test_a_message_larger_than_the_rest_of_a_pull(self) -> None:
        core = core_of(1000, 500, in_bytes=True)
        did(core)
        core.arrived(600)
        core.refill(1.0)
        assert core.taken(0) is False
        core.status(1, Status.of(409, "Message Size Exceeds MaxBytes", 999, 400), 1.0)
        assert pulled(core) == []  # 600 are buffered, which is above the threshold
        core.taken(600)
        core.refill(1.0)
        assert pulled(core) == [1000]

    def test_a_refill_that_is_too_small_waits_for_the_whole_limit(self) -> None:
        core = core_of(1000, 1000, in_bytes=True)
        did(core)
        core.arrived(900)
        core.tick(1.0)
        core.status(1, Status.of(409, "Message Size Exceeds MaxBytes", 999, 100), 1.0)
        assert pulled(core) == [100]
        core.status(2, Status.of(409, "Message Size Exceeds MaxBytes", 1_000_000, 100), 1.0)
        assert did(core) == []
        core.taken(900)
        core.refill(1.0)
        assert pulled(core) == [1000]
        core.status(3, Status.of(409, "Message Size Exceeds MaxBytes", 1_000_000, 1000), 1.0)
        assert did(core) == [Tell(MessageTooLarge(1000))]
        core.tick(1.1)
        assert pulled(core) == [1000]


class TestHeartbeats:
    def test_missed(self) -> None:
        core = core_of(idle_heartbeat=1.0, expires=10.0)
        did(core)
        core.status(1, Status.of(100), 1.0)
        core.tick(2.9)
        assert did(core) == []
        core.tick(3.0)
        assert did(core) == [Tell(MissedHeartbeats(2.0)), PullNow(2, 100, None)]

    def test_not_expected_while_the_buffer_is_full_or_the_connection_down(self) -> None:
        core = core_of(idle_heartbeat=1.0, expires=10.0)
        for _ in range(100):
            core.arrived()
        core.tick(0.5)
        did(core)
        core.tick(60.0)
        assert did(core) == []
        core = core_of(idle_heartbeat=1.0, expires=30.0)
        core.disconnected()
        did(core)
        core.tick(10.0)
        assert did(core) == []

    def test_silent_server_owes_the_pulls_of_a_drain_until_they_expire(self) -> None:
        core = core_of(idle_heartbeat=1.0, expires=10.0)
        did(core)
        core.stop()
        core.tick(9.0)
        assert (did(core), core.asked) == ([], 100)
        core.tick(12.0)
        assert (did(core), core.asked) == ([], 0)

    def test_pull_is_kept_after_its_time_while_its_messages_come(self) -> None:
        """A slow network holds them. Another pull would ask for more than there is room for."""
        core = core_of(idle_heartbeat=1.0, expires=10.0)
        did(core)
        for second in range(1, 51):
            core.arrived()
            core.taken()
            core.tick(float(second))
        assert (did(core), core.asked, core.waiting) == ([], 50, 1)
        core.tick(51.9)
        assert core.asked == 50
        core.tick(52.0)
        assert pulled(core) == [100]

    def test_time_in_which_the_process_stood_still_proves_no_silence(self) -> None:
        core = core_of(idle_heartbeat=1.0, expires=100.0)
        did(core)
        core.tick(1.5)
        core.tick(60.0, deaf=58.25)
        assert did(core) == []
        core.tick(60.25)
        assert did(core) == [Tell(MissedHeartbeats(2.0)), PullNow(2, 100, None)]

    def test_message_after_a_standstill_counts_as_heard_now(self) -> None:
        core = core_of(idle_heartbeat=1.0, expires=100.0)
        did(core)
        core.status(1, Status.of(100), 60.0)  # in the socket all the time
        core.tick(60.0, deaf=59.0)
        core.tick(61.9)
        assert did(core) == []
        core.tick(62.0)
        assert did(core) == [Tell(MissedHeartbeats(2.0)), PullNow(2, 100, None)]

    def test_messages_are_signs_of_life(self) -> None:
        core = core_of(idle_heartbeat=1.0, expires=10.0)
        did(core)
        for second in range(1, 8):
            core.arrived()
            core.tick(float(second))
        assert told(core) == []

    def test_without_any_overdue_pulls_are_given_up(self) -> None:
        core = core_of(idle_heartbeat=0.0, expires=5.0)
        did(core)
        core.tick(6.9)
        assert did(core) == []
        core.tick(7.1)
        assert pulled(core) == [100]


class TestPins:
    def test_kept_and_sent_and_cleared(self) -> None:
        core = core_of(2, 2, pinned=True)
        did(core)
        core.arrived()
        core.pinned("abc")
        core.pinned("abc")
        assert did(core) == [Tell(Pinned("abc"))]
        core.taken()
        core.refill(1.0)
        assert did(core) == [PullNow(2, 1, "abc")]
        core.status(2, Status.of(423, "Nats-Pin-Id mismatch"), 1.0)
        assert did(core) == [Tell(Unpinned("abc")), PullNow(3, 1, None)]
        assert core.pin_id is None

    def test_a_late_answer_leaves_the_new_pin_alone(self) -> None:
        core = core_of(2, 2, pinned=True)
        core.pinned("abc")
        core.arrived()
        core.taken()
        core.refill(1.0)  # number 2, with the pin abc
        core.pinned("def")
        did(core)
        core.status(2, Status.of(423, "Nats-Wrong-Pin-Id", 1), 1.0)
        assert core.pin_id == "def"
        assert did(core) == [PullNow(3, 1, "def")]

    def test_a_pull_keeps_the_pin_before_it_is_lost(self) -> None:
        core = core_of(100, 50, pinned=True, keep_pin=1.0, expires=1.0, idle_heartbeat=0.5)
        core.pinned("abc")
        did(core)
        read(core, 1, 0.5)
        core.tick(0.9)
        assert did(core) == []
        core.tick(1.0)
        assert did(core) == [PullNow(2, 1, "abc")]

    def test_a_pull_keeps_the_pin_while_few_bytes_have_room(self) -> None:
        limits = {"pinned": True, "keep_pin": 1.0, "expires": 1.0, "idle_heartbeat": 0.5}
        core = core_of(50, 25, max_bytes=1_000, **limits)
        core.pinned("abc")
        for _ in range(9):
            core.arrived()
        core.held_bytes = 900
        core.filled()
        did(core)
        core.tick(0.9)
        assert did(core) == []
        core.tick(1.0)
        assert did(core) == [PullNow(2, 41, "abc", 100)]
        # The next message is larger: it is pulled alone once nothing is buffered. Pulls keep the pin.
        core.status(2, Status.of(409, "Message Size Exceeds MaxBytes", 41), 1.1)
        core.tick(1.9)
        assert did(core) == []
        core.tick(2.0)
        assert did(core) == [PullNow(3, 41, "abc", 100)]
        core.status(3, Status.of(409, "Message Size Exceeds MaxBytes", 41), 2.1)
        for _ in range(9):
            core.taken()
        core.held_bytes = 0
        core.refill(2.2)
        assert did(core) == [PullNow(4, 1, "abc")]

    def test_no_pull_keeps_the_pin_without_room(self) -> None:
        core = core_of(50, 25, max_bytes=1_000, pinned=True, keep_pin=1.0, expires=1.0, idle_heartbeat=0.5)
        core.pinned("abc")
        core.arrived()
        core.held_bytes = 1_000
        core.filled()
        did(core)
        core.tick(1.0)
        assert did(core) == []


class TestFromHeaders:
    def test_as_nats_py_gives_them(self) -> None:
        status = Status.from_headers(
            {
                "Status": "408",
                "Description": "Request Timeout",
                "Nats-Pending-Messages": "7",
                "Nats-Pending-Bytes": "0",
            }
        )
        assert status == Status(StatusKind.ENDED, 408, "Request Timeout", 7, 0)

    def test_a_503_whose_text_is_its_first_header(self) -> None:
        """Defect 19."""
        status = Status.from_headers({"Status": "503", "Description": "\nNats-Subject: $JS.API.X"})
        assert (status.kind, str(status)) == (StatusKind.NO_RESPONDERS, "503")

    def test_a_negative_rest_is_none(self) -> None:
        assert Status.from_headers({"Status": "409", "Nats-Pending-Messages": "-1"}).messages == 0

    @pytest.mark.parametrize("headers", [None, {}, {"Status": "x"}, {"Nats-Pending-Bytes": "many"}])
    def test_nonsense_is_unknown(self, headers: dict[str, str] | None) -> None:
        assert Status.from_headers(headers).kind is StatusKind.UNKNOWN


class TestPlans:
    def test_defaults(self) -> None:
        plan = consume_plan(ConsumerConfig())
        assert json.loads(plan.payload(500, None)) == {
            "batch": 500,
            "expires": 30_000_000_000,
            "idle_heartbeat": 15_000_000_000,
        }
        assert plan.limits.threshold == 250

    def test_bytes(self) -> None:
        plan = consume_plan(ConsumerConfig(), max_bytes=1001)
        assert json.loads(plan.payload(7, None)) == {
            "batch": 1_000_000,
            "max_bytes": 7,
            "expires": 30_000_000_000,
            "idle_heartbeat": 15_000_000_000,
        }
        assert plan.limits.threshold == 501

    @pytest.mark.parametrize(("expires", "beat"), [(1, 0.5), (4, 2), (30, 15), (100, 30)])
    def test_heartbeats_are_half_within_bounds(self, expires: float, beat: float) -> None:
        assert consume_plan(ConsumerConfig(), expires=expires).limits.idle_heartbeat == beat

    def test_expires_stays_below_the_priority_timeout(self) -> None:
        config = ConsumerConfig(
            priority_policy=PriorityPolicy.PINNED_CLIENT, priority_groups=("a",), priority_timeout=5
        )
        plan = consume_plan(config, group="a", expires=30)
        assert (plan.limits.expires, plan.limits.idle_heartbeat) == (2.5, 1.25)
        assert json.loads(plan.payload(1, "pin"))["id"] == "pin"

    def test_the_consumers_own_limits(self) -> None:
        config = ConsumerConfig(max_batch=5, max_bytes=1000, max_expires=10)
        plan = consume_plan(config)
        assert (plan.limits.limit, plan.limits.expires) == (5, 10)
        assert consume_plan(config, max_bytes=1000).batch == 5
        for options in ({"max_messages": 6}, {"max_bytes": 1001}, {"expires": 11}):
            with pytest.raises(UsageError, match=r"must be at most .* consumer's"):
                consume_plan(config, **options)  # type: ignore[arg-type]

    def test_a_push_consumer(self) -> None:
        with pytest.raises(PushConsumerError):
            consume_plan(ConsumerConfig(deliver_subject="x"))

    def test_no_wait(self) -> None:
        plan = fetch_plan(ConsumerConfig(), max_messages=3, max_bytes=None, expires=None, idle_heartbeat=None)
        assert json.loads(plan.payload(3, None)) == {"no_wait": True, "batch": 3}
