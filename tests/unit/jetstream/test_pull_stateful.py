"""The pull core against a model of a server that serves, refuses, forgets and drops pulls."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from liftenvelope.jetstream._pulling.pull import Check, End, PullCore, PullLimits, PullNow
from liftenvelope.jetstream.statuses import Status

BEAT, EXPIRES = 1.0, 4.0


class ModelServer:
    """A consumer's leader: pulls in a ring, served in turn; most ends without a word."""

    def __init__(self, in_bytes: bool) -> None:
        self.in_bytes = in_bytes
        self.stored: deque[tuple[int, int]] = deque()  # amount, and bytes
        self.ring: deque[list[float]] = deque()  # number, left, deadline, bytes left
        self.frames: deque[tuple[Any, ...]] = deque()

    def accept(self, pull: PullNow, now: float) -> None:
        self.ring.append([pull.number, pull.amount, now + EXPIRES, pull.max_bytes or math.inf])

    def say(self, number: float, status: Status) -> None:
        self.frames.append(("status", number, status))

    def left(self, amount: float) -> tuple[int | None, int | None]:
        """The headers of a status: messages, bytes."""
        return (999_000, int(amount)) if self.in_bytes else (int(amount), 0)

    def serve(self, count: int) -> None:
        while count and self.stored and self.ring:
            (size, width), pull = self.stored[0], self.ring.popleft()
            if size > pull[1] or width > pull[3]:
                self.say(pull[0], Status.of(409, "Message Size Exceeds MaxBytes", *self.left(pull[1])))
                continue
            self.stored.popleft()
            self.frames.append(("message", size, width))
            pull[1] -= size
            pull[3] -= width
            count -= 1
            if pull[1] and pull[3]:
                self.ring.append(pull)  # filled exactly: gone, without a word

    def expire(self, now: float) -> None:
        for pull in [pull for pull in self.ring if pull[2] <= now]:
            self.ring.remove(pull)
            self.say(pull[0], Status.of(408, "Request Timeout", *self.left(pull[1])))

    def beat(self) -> None:
        for pull in self.ring:
            self.say(pull[0], Status.of(100, "Idle Heartbeat"))

    def change_leader(self) -> None:
        for pull in self.ring:
            self.say(pull[0], Status.of(409, "Leadership Change"))
        self.ring.clear()


class PullMachine(RuleBasedStateMachine):
    """Frames and pulls take their time; the server and the user do as they like."""

    @initialize(
        limit=st.integers(1, 12),
        threshold=st.integers(1, 12),
        in_bytes=st.booleans(),
        max_bytes=st.sampled_from([0, 1, 2, 5, 12, 30]),
        stop_after=st.sampled_from([0, 0, 1, 7, 30]),
        check=st.booleans(),
    )
    def begin(
        self, limit: int, threshold: int, in_bytes: bool, max_bytes: int, stop_after: int, check: bool
    ) -> None:
        self.now = 100.0
        self.server = ModelServer(in_bytes)
        self.commands: deque[PullNow] = deque()
        self.buffer: deque[tuple[int, int]] = deque()
        self.room = 0  # bytes that the open pull may still bring
        self.offline = False
        self.check = 0
        self.published = self.lost = self.read = self.received = 0
        max_bytes = 0 if in_bytes else max_bytes
        limits = PullLimits(
            limit,
            min(threshold, limit),
            in_bytes,
            EXPIRES,
            BEAT,
            check=check,
            max_bytes=max_bytes,
            stop_after=0 if in_bytes else stop_after,
        )
        self.core = PullCore(limits)
        self.core.start(self.now)
        self.act()

    def act(self) -> None:
        while self.core.actions:
            action = self.core.actions.pop(0)
            assert not isinstance(action, End)
            if isinstance(action, PullNow):
                assert not self.offline
                assert self.received + self.core.asked <= (self.core.limits.stop_after or math.inf)
                self.commands.append(action)
                self.room = action.max_bytes
            elif isinstance(action, Check):
                self.check = action.number

    @rule()
    def look_up_is_answered(self) -> None:
        if self.check and not self.offline:
            self.core.checked(self.check, True, self.now)
            self.check = 0
            self.act()

    @rule(sizes=st.lists(st.integers(1, 12), max_size=8))
    def publish(self, sizes: list[int]) -> None:
        for size in sizes:
            self.server.stored.append(
                (min(size, self.core.limits.limit), 0) if self.server.in_bytes else (1, size)
            )
            self.published += 1

    @rule()
    def server_accepts(self) -> None:
        while self.commands:
            self.server.accept(self.commands.popleft(), self.now)

    @precondition(lambda self: self.commands)
    @rule()
    def server_refuses(self) -> None:
        pull = self.commands.popleft()
        self.server.say(pull.number, Status.of(409, "Exceeded MaxWaiting"))

    @precondition(lambda self: self.commands)
    @rule()
    def server_drops(self) -> None:
        self.commands.popleft()

    @rule(count=st.integers(1, 12))
    def server_serves(self, count: int) -> None:
        self.server.serve(count)

    @rule()
    def leader_changes(self) -> None:
        self.server.change_leader()

    @rule(count=st.integers(1, 20))
    def frames_arrive(self, count: int) -> None:
        while count and self.server.frames:
            kind, *what = self.server.frames.popleft()
            if kind == "message":
                self.buffer.append((what[0], what[1]))
                self.core.arrived(what[0])
                self.received += what[0]
                self.core.held_bytes += what[1]
                self.room -= what[1]
                if self.core.limits.max_bytes and self.room <= 0:
                    self.core.filled()
            else:
                self.core.status(what[0], what[1], self.now)
                self.act()
            count -= 1

    @rule(count=st.integers(1, 12))
    def user_reads(self, count: int) -> None:
        while count and self.buffer:
            size, width = self.buffer.popleft()
            self.core.held_bytes -= width
            if self.core.taken(size):
                self.core.refill(self.now)
                self.act()
            self.read += 1
            count -= 1

    @precondition(lambda self: not self.offline)
    @rule()
    def connection_lost(self) -> None:
        self.offline = True
        self.lose_all()
        self.core.disconnected()
        self.act()

    @precondition(lambda self: self.offline)
    @rule()
    def connection_back(self) -> None:
        self.offline = False
        self.core.reconnected(self.now)
        self.act()

    @rule()
    def blink(self) -> None:
        """A reconnect so quick that the loss was not seen."""
        if not self.offline:
            self.lose_all()
            self.core.reconnected(self.now)
            self.act()

    def lose_all(self) -> None:
        self.lost += sum(frame[0] == "message" for frame in self.server.frames)
        self.server.ring.clear()
        self.server.frames.clear()
        self.commands.clear()

    @rule(steps=st.integers(1, 6))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            if not self.offline:
                self.server_accepts()
            self.now += BEAT / 2
            self.server.expire(self.now)
            self.server.beat()
            self.frames_arrive(10_000)
            self.core.tick(self.now)
            self.act()

    @invariant()
    def never_over_the_limit(self) -> None:
        owed = sum(pull[1] for pull in self.server.ring) + sum(pull.amount for pull in self.commands)
        owed += sum(frame[1] for frame in self.server.frames if frame[0] == "message")
        assert self.core.buffered == sum(size for size, _ in self.buffer)
        assert owed + self.core.buffered <= self.core.limits.limit
        assert self.core.asked >= owed
        self.never_over_the_bytes()

    def never_over_the_bytes(self) -> None:
        """Besides messages, bytes are limited; a message that does not fit comes alone."""
        if not (most := self.core.limits.max_bytes):
            return
        there = [width for _, width in self.buffer]
        there += [frame[2] for frame in self.server.frames if frame[0] == "message"]
        owed = sum(pull[3] for pull in self.server.ring)
        owed += sum(pull.max_bytes or math.inf for pull in self.commands)
        assert len(there) + (owed == math.inf) <= 1 or sum(there) + owed <= most

    def teardown(self) -> None:
        """Whatever has happened: when all is well again, everything is delivered."""
        if not hasattr(self, "core"):
            return
        if self.offline:
            self.connection_back()
        rounds_of_each = 2 if self.core.limits.max_bytes else 0  # in vain, and alone
        for _ in range(400 + rounds_of_each * self.published):
            self.look_up_is_answered()
            self.time_passes(1)
            self.server.serve(50)
            self.frames_arrive(10_000)
            self.user_reads(10_000)
            self.never_over_the_limit()
        has_all = self.received == self.core.limits.stop_after > 0
        assert has_all or self.read + self.lost == self.published
        # What is owed is known exactly once pulls have had the time to end.
        assert self.core.asked == sum(pull[1] for pull in self.server.ring) + sum(
            pull.amount for pull in self.commands
        )


TestPull = PullMachine.TestCase
TestPull.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
