"""The consumers that an ordered reading uses up: made at a place in the stream, and removed after use."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import nats.errors

from liftenvelope.jetstream.consumer import Consumer
from liftenvelope.jetstream.consumer_config import ConsumerConfig, DeliverPolicy
from liftenvelope.jetstream.consumer_requests import put_consumer

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["Places"]

#: Tasks that have consumers removed; the loop itself holds tasks only weakly.
_removing: Final[set[asyncio.Task[None]]] = set()


class Places:
    """Makes consumers of a stream that begin where one left off.

    Args:
        api: The way to the server.
        stream: The stream's name.
        config: What they all are like, and where the first one begins.
    """

    def __init__(self, api: Api, stream: str, config: ConsumerConfig) -> None:
        self._api = api
        self._nc: Any = api.nc
        self._stream = stream
        self._config = config
        #: With the policy NEW: what was the last message when the first consumer was made. The next consumer
        #: begins there too, or it would skip what has come between both.
        self._newest: int | None = None

    async def make(self, sequence: int, *, timeout: float | None = None) -> Consumer:
        """Make a consumer.

        Args:
            sequence: After which sequence of the stream it begins; 0 for where the configuration says.
            timeout: How long to wait for the answer, in seconds. Default: that of the API.

        Raises:
            StreamNotFoundError: There is no such stream.
            JetStreamError, CallTimeoutError, TransportError: It could not be made, or nobody knows.
        """
        config = replace(self._config, name=secrets.token_hex(8))
        if sequence or self._newest is not None:
            config = replace(
                config,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=max(sequence, self._newest or 0) + 1,
                opt_start_time=None,
            )
        info = await put_consumer(self._api, self._stream, config, "create", timeout=timeout)
        if config.deliver_policy is DeliverPolicy.NEW:
            self._newest = info.delivered.stream_seq
        return Consumer(self._api, info)

    def forget(self, consumer: Consumer | None) -> None:
        """Have the server remove a consumer before it would by itself; nobody waits for the answer."""
        if consumer is not None and self._nc.is_connected:
            task = asyncio.get_running_loop().create_task(self._remove(consumer.name))
            _removing.add(task)
            task.add_done_callback(_removing.discard)

    async def _remove(self, name: str) -> None:
        subject = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{name}"
        try:
            await self._nc.publish(subject, b"", reply=self._nc.new_inbox())
        except nats.errors.Error:
            return  # the connection goes, and the server removes the consumer after a while
