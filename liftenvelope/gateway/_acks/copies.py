"""Acks of messages published for a partition that copies from another stream.

JetStream answers such a publish for the stream that records the subject, so the answer does not contain the
offset in the copy. Therefore the gateway's envelope names an ack inbox of the gateway itself, as raw NATS
publishers name theirs. The partition's leader acks the message there once it is in the copy.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import AckTimeoutError, EnvelopeError, EnvelopeTooLargeError, TransportError
from liftenvelope.jetstream.publish_frames import PubAck
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import DirectSubscription, subscribe_direct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.client import Client

__all__ = ["CopyAcks"]


class CopyAcks:
    """Publishes messages for copying partitions and receives all their acks on one inbox.

    Args:
        nc: The connection.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._link = Link(nc)
        self._inbox = nc.new_inbox()
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
            subject: NATS subject to publish to.
            value: The value.
            key: The key.
            headers: The headers.
            timeout: Seconds after which the future fails with AckTimeoutError.

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
            await self._link.publish(subject, envelope)
        except BaseException:
            future.cancel()  # nobody else has the future
            raise
        return future

    def _expect(self, token: str, stream: str, timeout: float) -> asyncio.Future[PubAck]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PubAck] = loop.create_future()
        self._pending[token] = (stream, future)
        timer = loop.call_later(timeout, self._expire, token, timeout)
        future.add_done_callback(lambda _: timer.cancel())
        future.add_done_callback(lambda _: self._pending.pop(token))
        return future

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
