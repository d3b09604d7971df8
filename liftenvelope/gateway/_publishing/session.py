"""Serves a PublishAsync call: writes a stream of requests to JetStream and sends the acks back.

A message takes one of two paths:

- Fast path, :class:`~liftenvelope._native.gate.PublishPipe`: one write holds the PUB commands of a whole
  batch, and one write holds the responses to a whole batch of acks. It takes plain messages for partitions
  that have a route.
- Slow path, the same as a single Publish: all other messages, and the first message for each partition. Only
  this path resumes partitions and explains errors.

Acks of one partition are sent in order. A partition therefore gets its route only after the ack of its first
message, for which the call waits at most 1 s. The route is dropped if the stream's record changes, if too few
replicas are in sync, or if no stream records the subject. The next message of the partition then takes the
slow path again. See :mod:`liftenvelope.gateway._publishing.routes`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftenvelope import _native
from liftenvelope._pb import api_pb2
from liftenvelope.errors import (
    AckTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    PermissionDeniedError,
    TransportError,
)
from liftenvelope.gateway._clients.counts import CANCELLED, PublishTally, reason_of
from liftenvelope.gateway._partitions.replicas import least_in_sync
from liftenvelope.gateway._protocol.failures import not_stored, refused_publish, status_of
from liftenvelope.gateway._protocol.requests import read_request, without_content
from liftenvelope.gateway._publishing.routes import Routes
from liftenvelope.gateway._publishing.targets import PublishTarget, ack_of
from liftenvelope.jetstream.publish_frames import PubAck, read_ack
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import DirectSubscription, subscribe_direct
from liftenvelope.nats.reports import read_refusals
from liftenvelope.rpc.status import UNANSWERED_IS_NOT_STORED, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._publishing.intake import Intake
    from liftenvelope.rpc.server import ServerCall

__all__ = ["PublishSession"]

_NONE: Final = api_pb2.NONE
_POLICIES: Final = (api_pb2.LEADER, api_pb2.ALL, api_pb2.NONE)
#: Seconds to wait for acks after the client's last request, as in Liftbridge.
_LAST_ACKS: Final = 5.0
#: Seconds that the ack of a partition's first message may delay the following messages.
_FIRST_ACK: Final = 1.0
#: Digits of a number that no message has.
_MOST_DIGITS: Final = 19
#: Interval of the checks for late acks and for a lost connection, in seconds.
_LOOK: Final = 0.5
#: Texts by which our client recognizes an unknown outcome: Liftbridge has no code for that.
_MAY_BE_STORED: Final = "the gateway is stopping: {} messages without an ack may be stored"
_UNKNOWN_OUTCOME: Final = "no ack came from JetStream in time; the message may be stored"
#: Reason to count a message under that may be stored or not.
_UNKNOWN: Final = reason_of(AckTimeoutError(_UNKNOWN_OUTCOME))
_E: Final = api_pb2.PublishAsyncError
_ASYNC_CODES: Final = {
    StatusCode.INVALID_ARGUMENT: _E.BAD_REQUEST,
    StatusCode.NOT_FOUND: _E.NOT_FOUND,
    StatusCode.FAILED_PRECONDITION: _E.READONLY,
    StatusCode.PERMISSION_DENIED: _E.PERMISSION_DENIED,
    StatusCode.UNKNOWN: _E.INCORRECT_OFFSET,
    StatusCode.ABORTED: _E.UNKNOWN,
    StatusCode.UNAVAILABLE: _E.UNKNOWN,
    StatusCode.DEADLINE_EXCEEDED: _E.UNKNOWN,
}


class _Arrival(NamedTuple):
    """Time when a message of the slow path arrived.

    Attributes:
        at: Time of the event loop, in seconds.
        ns: Nanoseconds since 1970.
    """

    at: float
    ns: int


class PublishSession:
    """Serves one PublishAsync call.

    Args:
        intake: Stores messages of the slow path and looks up their targets.
        core: The gateway's parts.
        call: The call to serve.
    """

    def __init__(self, intake: Intake, core: Core, call: ServerCall) -> None:
        self._intake = intake
        self._core = core
        self._call = call
        self._link = Link(core.nc)
        inbox = self._link.new_inbox() + "."
        self._inbox = inbox + "*"
        limits = core.options.limits
        self._pipe = _native.gate.PublishPipe(inbox, intake.max_message, limits.max_name_chars)
        # Requests that are being published, and messages of the fast path without an ack. Each message of the
        # slow path holds its own bytes.
        self._held = core.quotas.pending(call)
        self._tally = PublishTally(core.publishes["PublishAsync"])
        self._is_publishing = False
        self._routes = Routes(core, self._pipe)
        self._read_ack = _native.jet.AckReader(PubAck, read_ack)
        # Time of the event loop when the last requests were received.
        self._received = 0.0
        # Messages of the slow path that have no answer yet.
        self._slow = 0
        self._answers: list[bytes] = []
        self._changed = asyncio.Event()
        self._explaining: set[asyncio.Task[None]] = set()
        # (deadline, number) pairs: at the deadline, messages with lower numbers and without an ack are late.
        self._numbers: deque[tuple[float, int]] = deque()

    async def run(self) -> None:
        """Store messages and send answers until the client has sent all and has all answers.

        Raises:
            RpcError: UNAVAILABLE: the connection to NATS was lost, or the gateway is draining.
        """
        tasks: list[asyncio.Task[None]] = []
        subscription: DirectSubscription | None = None
        draining = asyncio.create_task(self._drain(), name="drain publishes")
        reason = CANCELLED
        stop_refusals = read_refusals(self._core.nc, self._routes.drop_refused)
        try:
            subscription = await subscribe_direct(self._core.nc, self._inbox, self._on_acks)
            tasks = [asyncio.create_task(part, name="publish") for part in (self._serve(), self._watch())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            reason = _UNKNOWN
        except RpcError as exc:
            reason = reason_of(exc)
            raise
        except TransportError as exc:
            reason = reason_of(exc)
            raise status_of(exc) from exc
        finally:
            stop_refusals()
            for task in (*tasks, draining):
                task.cancel()
            await asyncio.gather(*tasks, draining, return_exceptions=True)
            self._held.shrink(0)
            self._tally.close(reason)
            if subscription is not None:
                await subscription.unsubscribe()

    async def _serve(self) -> None:
        while (requests := await self._call.receive()) is not None:
            self._received = asyncio.get_running_loop().time()
            await self._publish(requests)
            # Backpressure: waits while the client reads no answers.
            await self._call.send(self._taken())
            if self._core.draining.is_set():
                break
        await self._finish()
        if self._core.draining.is_set():
            # All answers precede the status, so the client knows the fate of each message.
            text = _MAY_BE_STORED.format(self._pending) if self._pending else UNANSWERED_IS_NOT_STORED
            raise RpcError(StatusCode.UNAVAILABLE, text)

    async def _drain(self) -> None:
        """Stop reading requests once the gateway drains."""
        await self._core.draining.wait()
        self._call.flow.exhaust()

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(_LAST_ACKS):
                while self._pending:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass  # messages without an ack get no answer: their outcome is unknown
        await self._call.send(self._taken())

    @property
    def _pending(self) -> int:
        return self._pipe.pending + self._slow

    # Requests

    async def _publish(self, requests: list[bytes]) -> None:
        """Publish a batch when the client has room for it; if it has not, message by message.

        Wait afterwards while more messages than ``max_pending_publishes`` have no answer.
        """
        size = sum(map(len, requests))
        self._tally.taken(len(requests), size)
        if self._held.add_now(size):
            await self._take(requests)
        else:
            for request in requests:
                await self._held.add(len(request))
                await self._take([request])
        while self._pending > self._core.options.limits.max_pending_publishes:
            self._changed.clear()
            await self._changed.wait()

    async def _take(self, requests: list[bytes]) -> None:
        """Publish messages in order: runs of plain ones on the fast path, each other one on the slow path."""
        self._is_publishing = True
        self._routes.drop_outdated()
        at = 0
        while at < len(requests):
            frames, at, count, size = self._pipe.take(requests, at, time.time_ns())
            if count:
                self._tally.times.taken(self._pipe.next_number, asyncio.get_running_loop().time())
                await self._write(frames, count, size)
            if at < len(requests):
                await self._publish_one(requests[at])
                at += 1
        self._is_publishing = False
        self._settle()

    def _settle(self) -> None:
        """Give back the bytes of messages that are no longer pending, and wake the call."""
        if not self._is_publishing:
            self._held.shrink(self._pipe.pending_bytes)
        self._changed.set()

    async def _write(self, frames: bytes, count: int, size: int) -> None:
        seconds = self._core.options.ack_timeout
        await self._link.room(len(frames), asyncio.get_running_loop().time() + seconds)
        if not self._link.direct:
            raise RpcError(
                StatusCode.UNIMPLEMENTED,
                "PublishAsync needs a supported nats-py: install nats-py>=2.16,<3 in the gateway",
            )
        self._link.write(frames, count, size)

    async def _publish_one(self, raw: bytes) -> None:
        """Publish a message on the slow path, then open the fast path for its partition if possible."""
        request = read_request(api_pb2.PublishRequest, raw, self._core.options.limits)
        request.ClearField("ackInbox")  # as in Liftbridge, and as on the fast path: the answer is the ack
        arrival = _Arrival(asyncio.get_running_loop().time(), time.time_ns())
        try:
            target = await self._intake.target(request, self._received)
            future = await self._intake.store(
                target,
                request,
                connection=self._call.connection,
                own_inbox=False,
                received_ns=arrival.ns,
                timeout=None,
            )
        except LiftEnvelopeError as exc:
            self._tally.fail(reason_of(exc))
            self._answer_refused(status_of(exc), request.correlationId)
            return
        self._held.split(len(raw)).keep_until(future)
        request = without_content(request)
        self._slow += 1
        future.add_done_callback(partial(self._stored, target, request, arrival))
        if self._routes.is_wanted(target):
            # Acks of the fast path could overtake this one, and acks of a partition must stay in order.
            await asyncio.wait({future}, timeout=_FIRST_ACK)
            if not _is_denied(future):
                self._routes.add(target)

    # Acks

    def _on_acks(self, messages: list[Any]) -> None:
        """Send the responses for a batch of JetStream's replies to messages of the fast path."""
        before = self._pipe.pending
        frames, others = self._pipe.acked(messages, time.time_ns())
        if acked := before - self._pipe.pending - len(others):
            now = asyncio.get_running_loop().time()
            self._tally.ack_numbered(_number_of(messages[0]), _number_of(messages[-1]), acked, now)
        if frames:
            self._call.send_framed_nowait(frames)
        for message, (stream, partition), policy, correlation_id, received_ns in others:
            request = api_pb2.PublishRequest(stream=stream.decode(), partition=partition)
            request.correlationId, request.ackPolicy = correlation_id.decode(), _POLICIES[policy]
            self._on_other(message, request, received_ns)
        self._settle()

    def _on_other(self, message: Any, request: api_pb2.PublishRequest, received_ns: int) -> None:
        """Handle a reply that is no plain ack: an error, or an ack of another stream or domain."""
        _, _, headers, payload = message
        target = self._routes.target(request.stream, request.partition)
        if headers is not None:
            # No stream records the subject: the partition was just paused, made readonly or deleted.
            self._routes.drop(request.stream, request.partition)
            self._refuse_later(NoJetStreamError(503, "no stream records the subject"), request, target)
            return
        answer = self._read_ack(payload)
        if isinstance(answer, JetStreamError):
            self._refuse_later(answer, request, target)
        elif target is not None and answer.stream == target.stream:
            number, now = _number_of(message), asyncio.get_running_loop().time()
            self._tally.ack_numbered(number, number, 1, now)
            self._accept(target, request, answer.sequence, received_ns)
            self._routes.expect_domain(answer.domain or "")
        else:
            # Another stream stored the message. The target may copy from that stream or not, so the outcome
            # is unknown.
            self._tally.fail(_UNKNOWN)
            self._give_up(request.ackPolicy, request.correlationId)

    def _stored(
        self,
        target: PublishTarget,
        request: api_pb2.PublishRequest,
        arrival: _Arrival,
        future: asyncio.Future[PubAck],
    ) -> None:
        """Answer a message of the slow path whose publish has ended.

        An answer that needs an ``await`` counts in ``_slow`` again until it is sent (see ``_answer_later``),
        so that the call does not end before it.
        """
        self._slow -= 1
        self._changed.set()
        if future.cancelled():
            return
        error = future.exception()
        if error is None and request.ackPolicy == api_pb2.ALL and least_in_sync(target.record):
            self._answer_later(self._accept_in_sync(target, request, future.result().sequence, arrival))
        elif error is None:
            self._tally.ack(asyncio.get_running_loop().time() - arrival.at)
            self._accept(target, request, future.result().sequence, arrival.ns)
        elif isinstance(error, AckTimeoutError | TransportError):
            self._tally.fail(reason_of(error))
            self._give_up(request.ackPolicy, request.correlationId)
        elif isinstance(error, LiftEnvelopeError):
            self._refuse_later(error, request, target)

    def _accept(
        self, target: PublishTarget, request: api_pb2.PublishRequest, sequence: int, received_ns: int
    ) -> None:
        if request.ackPolicy != _NONE:
            ack = ack_of(target, request, sequence, received_ns)
            response = api_pb2.PublishResponse(ack=ack, correlationId=request.correlationId)
            self._answer(response.SerializeToString())

    async def _accept_in_sync(
        self, target: PublishTarget, request: api_pb2.PublishRequest, sequence: int, arrival: _Arrival
    ) -> None:
        """Answer with an ack if enough replicas are in sync, else with an unknown outcome."""
        try:
            await self._intake.check_replicas(target, request)
        except RpcError:
            self._tally.fail(_UNKNOWN)
            self._give_up(request.ackPolicy, request.correlationId)
        else:
            self._tally.ack(asyncio.get_running_loop().time() - arrival.at)
            self._accept(target, request, sequence, arrival.ns)
        finally:
            self._slow -= 1
            self._changed.set()

    def _refuse_later(
        self, error: LiftEnvelopeError, request: api_pb2.PublishRequest, target: PublishTarget | None
    ) -> None:
        self._answer_later(self._refuse(error, request, target))

    def _answer_later(self, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(answer)
        self._slow += 1
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)

    async def _refuse(
        self, error: LiftEnvelopeError, request: api_pb2.PublishRequest, target: PublishTarget | None
    ) -> None:
        try:
            status = await self._intake.explained(error, request.stream, request.partition, target)
            self._tally.fail(reason_of(status))
            self._answer_refused(status, request.correlationId)
        finally:
            self._slow -= 1
            self._changed.set()

    def _answer_refused(self, status: RpcError, correlation_id: str) -> None:
        """Answer that a message is not stored."""
        status = not_stored(status)
        code = _ASYNC_CODES.get(StatusCode(status.code), _E.INTERNAL)
        limits = self._core.options.limits
        self._answer(refused_publish(code, status.description, correlation_id, limits))

    def _answer(self, response: bytes) -> None:
        """Queue a response. All responses of one loop iteration are sent together."""
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._flush)
        self._answers.append(response)

    def _flush(self) -> None:
        self._call.send_nowait(self._taken())

    def _taken(self) -> list[bytes]:
        answers, self._answers = self._answers, []
        return answers

    async def _watch(self) -> None:
        """Give up late acks, and end the call when a lost connection may have lost its acks.

        Each check adds one (deadline, number) pair, so that no message needs a timer of its own.
        """
        loop, epoch = asyncio.get_running_loop(), self._link.epoch
        while True:
            self._numbers.append((loop.time() + self._core.options.ack_timeout, self._pipe.next_number))
            while self._numbers[0][0] <= loop.time():
                below = self._numbers.popleft()[1]
                for policy, correlation_id in self._pipe.expire(below):
                    self._give_up(policy, correlation_id.decode())
                    self._tally.fail(_UNKNOWN)
                self._tally.times.forget(below)
                self._settle()
            await asyncio.sleep(_LOOK)
            before, epoch = epoch, self._link.epoch
            if epoch != before and self._pending:
                text = f"the gateway has lost NATS: {self._pending} messages without an ack may be stored"
                raise RpcError(StatusCode.UNAVAILABLE, text)

    def _give_up(self, policy: int, correlation_id: str) -> None:
        """Answer that the outcome of a message is unknown: the message may be stored."""
        if policy != _NONE:
            text = _UNKNOWN_OUTCOME + self._fault()
            self._answer(refused_publish(_E.UNKNOWN, text, correlation_id, self._core.options.limits))

    def _fault(self) -> str:
        """Return the known cause why JetStream stores no messages of a stream of this call, or ``""``."""
        for stream, partition in self._routes:
            if cause := self._core.faults.cause(stream, partition):
                return f" (stream {stream!r}, partition {partition}: {cause})"
        return ""


def _is_denied(future: asyncio.Future[PubAck]) -> bool:
    """Return True if NATS has refused a message by the permissions of the gateway's user."""
    is_over = future.done() and not future.cancelled()
    return is_over and isinstance(future.exception(), PermissionDeniedError)


def _number_of(message: Any) -> int:
    """Return the number of the message that a reply is for, the last token of its subject; 0 for none."""
    text = message[0].rpartition(".")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0
