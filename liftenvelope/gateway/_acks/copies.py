"""Acks of messages published for a partition that copies from another stream.

JetStream answers such a publish for the stream that records the subject, so the answer does not contain the
offset in the copy. Therefore the gateway's envelope names an ack inbox of the gateway itself, as raw NATS
publishers name theirs. The partition's leader acks the message there once it is in the copy.

JetStream's answer still counts in two cases. No stream recorded the message, as while the subject is handed
over, or a stream refused it. Or the copy itself recorded it, because it has taken over the subject.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeError,
    EnvelopeTooLargeError,
    JetStreamError,
    PermissionDeniedError,
    TransportError,
)
from liftenvelope.jetstream.publish_frames import PubAck
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import DirectSubscription, subscribe_direct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftenvelope.jetstream.context import JetStream

__all__ = ["CopyAcks"]


class CopyAcks:
    """Publishes messages for copying partitions and receives all their acks on one inbox.

    Args:
        js: JetStream, for its connection and its answers.
    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._nc = js.api.nc
        self._link = Link(self._nc)
        self._inbox = self._nc.new_inbox()
        self._subscription: DirectSubscription | None = None
        # By correlation id: the stream whose ack counts, and the future of that ack.
        self._pending: dict[str, tuple[str, asyncio.Future[PubAck]]] = {}
        self._number = 0
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        """Stop receiving acks; fail the messages that have none."""
        for _, future in list(self._pending.values()):
            if not future.done():
                future.set_exception(
                    TransportError("the gateway is closed; the message may be stored", 1, True)
                )
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None

    async def publish(
        self,
        stream: str,
        partition: str,
        subject: str,
        value: bytes,
        *,
        key: bytes,
        headers: Mapping[str, bytes],
        timeout: float,
    ) -> asyncio.Future[PubAck]:
        """Publish a message; return the future of the stream's ack.

        Args:
            stream: Name of the Liftbridge stream whose ack counts.
            partition: Name of the JetStream stream that holds its partition.
            subject: NATS subject to publish to.
            value: The value.
            key: The key.
            headers: The headers.
            timeout: Seconds after which the future fails with AckTimeoutError. It fails with NoJetStreamError
                if no stream records the subject, and with another JetStreamError or PermissionDeniedError if
                the message is refused.

        Raises:
            EnvelopeTooLargeError: The message is too large for an envelope, or the envelope for the server.
            TransportError: The connection is closed or draining. The message is not stored.
        """
        async with self._starting:
            if self._subscription is None:
                self._subscription = await subscribe_direct(
                    self._nc, self._inbox, self._on_acks, payloads=True
                )
        self._number += 1
        token = str(self._number)
        envelope = new_message(value, key=key, headers=headers, ack_inbox=self._inbox, correlation_id=token)
        if len(envelope) > (limit := self._link.max_payload):
            # The check of the request did not count the gateway's own inbox.
            raise EnvelopeTooLargeError(f"the envelope must be at most {limit} bytes, got {len(envelope)}")
        future = self._expect(token, stream, timeout)
        try:
            answer = await self._js.publish_async(subject, envelope, timeout=timeout, retry_attempts=0)
        except BaseException:
            future.cancel()  # nobody else has the future
            raise
        answer.add_done_callback(partial(self._on_answer, stream, partition, future))
        return future

    def _expect(self, token: str, stream: str, timeout: float) -> asyncio.Future[PubAck]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PubAck] = loop.create_future()
        self._pending[token] = (stream, future)
        timer = loop.call_later(timeout, self._expire, token, timeout)
        future.add_done_callback(lambda _: timer.cancel())
        future.add_done_callback(lambda _: self._pending.pop(token))
        return future

    @staticmethod
    def _on_answer(
        stream: str, partition: str, future: asyncio.Future[PubAck], answer: asyncio.Future[PubAck]
    ) -> None:
        """Settle a message that JetStream did not store, or stored in the copy itself."""
        if answer.cancelled():
            return
        error = answer.exception()
        if future.done():
            return
        if error is None and answer.result().stream == partition:
            future.set_result(PubAck(stream, answer.result().sequence))
        elif isinstance(error, JetStreamError | PermissionDeniedError):
            future.set_exception(error)  # otherwise the leader's ack may still come

    def _on_acks(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            try:
                ack = unmarshal_ack(payload)
            except EnvelopeError:
                continue  # not from a gateway: any client can publish to the inbox
            stream, future = self._pending.get(ack.correlation_id, ("", None))
            # Other streams that record the subject also ack the message.
            if future is not None and ack.stream == stream and not future.done():
                future.set_result(PubAck(stream, ack.offset + 1))

    def _expire(self, token: str, timeout: float) -> None:
        _, future = self._pending.get(token, ("", None))
        if future is not None and not future.done():
            future.set_exception(AckTimeoutError(f"no ack within {timeout} s", token, sent=True))
