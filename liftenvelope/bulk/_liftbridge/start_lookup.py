"""Blocking shell for :class:`~liftenvelope.client.start_lookup.StartLookup`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from liftenvelope._deadlines import Deadline
from liftenvelope.bulk._liftbridge.brokers import Brokers
from liftenvelope.client.start_lookup import ENDED, Pause, Receive, StartLookup, Subscribe
from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.client.start_lookup import Answer, LookupStep, LookupSteps
    from liftenvelope.rpc.blocking import ResponseStream

__all__ = ["BlockingStartLookup"]

_T = TypeVar("_T")


class BlockingStartLookup:
    """Offset lookups at the leader of one partition. For one thread at a time.

    Args:
        brokers: Finds the leader and holds the connections.
        stream: Name of the stream.
        partition: Number of the partition.
        timeout: Seconds for the attempts at one answer.
    """

    def __init__(self, brokers: Brokers, stream: str, partition: int, timeout: float) -> None:
        self._brokers = brokers
        self._stream = stream
        self._partition = partition
        self._timeout = timeout
        self._lookup = StartLookup(stream, partition)
        self._deadline = Deadline(timeout)
        self._call: ResponseStream | None = None
        self._open = ExitStack()

    def oldest(self) -> int | None:
        """Return the offset of the oldest message: see ``StartLookup.oldest``."""
        return self.run(self._lookup.oldest())

    def at_time(self, time_ns: int, newest: int) -> int | None:
        """Return the offset of the first message at or after a time: see ``StartLookup.at_time``."""
        return self.run(self._lookup.at_time(time_ns, newest))

    def is_empty(self, last: int, newest: int) -> bool:
        """Return True if no message is left up to an offset: see ``StartLookup.is_empty``."""
        return self.run(self._lookup.is_empty(last, newest))

    def is_emptied(self, newest: int) -> bool:
        """Return True if retention has emptied a log that begins at 0: see ``StartLookup.is_emptied``."""
        return self.run(self._lookup.is_emptied(newest))

    def run(self, steps: LookupSteps[_T]) -> _T:
        """Carry out the steps of a lookup and return its result.

        Raises:
            CallTimeoutError, TransportError: The broker gave no clear answer in time.
            PermissionDeniedError: The client may not subscribe to the stream.
            LiftEnvelopeError: As for ``Brokers.leader``.
        """
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._answer(step)
                except (RpcError, TransportError) as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            found: _T = end.value
            return found
        finally:
            self._open.close()

    def _answer(self, step: LookupStep) -> Answer:
        match step:
            case Subscribe():
                self._subscribe(step)
            case Receive(seconds):
                return self._receive(seconds)
            case Pause(attempt):
                self._open.close()
                time.sleep(self._deadline.pause_before(attempt))
                return not self._deadline.is_over
            case _:
                self._brokers.partition(self._stream, self._partition)
        return None

    def _subscribe(self, step: Subscribe) -> None:
        self._open.close()
        if not step.again:
            self._deadline = Deadline(self._timeout)
        subscription = self._brokers.subscription(step.request, reconnect=step.again)
        self._call = self._open.enter_context(subscription)

    def _receive(self, seconds: float) -> bytes | None:
        call = self._call
        assert call is not None  # a lookup subscribes first
        try:
            payload = call.receive(timeout=seconds)
        except RpcError as exc:
            if call.ended or exc.code != StatusCode.DEADLINE_EXCEEDED:
                raise
            return None
        if payload is None:
            raise RpcError(StatusCode.UNAVAILABLE, ENDED)
        return payload
