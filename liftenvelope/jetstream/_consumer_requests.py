"""Requests that create, update, look up and delete consumers; shared by ``JetStream`` and ``Stream``."""

from __future__ import annotations

import secrets
from typing import Literal

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream._consumer_config import ConsumerConfig
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.infos import ConsumerInfo
from liftenvelope.jetstream.names import check_consumer_name, check_stream_name

__all__ = ["ConsumerAction", "consumer_info", "delete_consumer", "put_consumer"]

#: Action of ``CONSUMER.CREATE``, in the server's words: the consumer must be new, must exist, or either.
ConsumerAction = Literal["create", "update", ""]


async def put_consumer(
    api: Api, stream: str, config: ConsumerConfig, action: ConsumerAction, *, timeout: float | None = None
) -> ConsumerInfo:
    """Create or update a consumer.

    Raises:
        ConsumerExistsError: ``action`` is ``"create"`` and the consumer exists with another configuration.
        ConsumerNotFoundError: ``action`` is ``"update"`` and the consumer does not exist.
        StreamNotFoundError: The stream does not exist.
        JetStreamError: The server rejects the configuration.
        UsageError: A name is invalid, or ``action`` is ``"update"`` and the configuration has no name.
    """
    check_stream_name(stream)
    if not isinstance(config, ConsumerConfig):
        raise UsageTypeError(f"config must be a ConsumerConfig, got {type(config).__name__}")
    name = config.name or config.durable_name
    if name is None:
        if action == "update":
            raise UsageError(f"name or durable_name must be given to change a consumer, got {config!r}")
        name = secrets.token_hex(8)  # chosen here: a repeated request must not create a second consumer
    subject = f"CONSUMER.CREATE.{stream}.{name}"
    if config.filter_subject:
        subject += f".{config.filter_subject}"
    body = {"stream_name": stream, "config": {**config.to_json(), "name": name}, "action": action}
    return await api.request_as(ConsumerInfo.from_json, subject, body, timeout=timeout)


async def consumer_info(
    api: Api, stream: str, consumer: str, *, timeout: float | None = None
) -> ConsumerInfo:
    """Request the configuration and state of a consumer.

    Raises:
        ConsumerNotFoundError: The consumer does not exist.
        StreamNotFoundError: The stream does not exist.
    """
    subject = f"CONSUMER.INFO.{check_stream_name(stream)}.{check_consumer_name(consumer)}"
    return await api.request_as(ConsumerInfo.from_json, subject, timeout=timeout)


async def delete_consumer(api: Api, stream: str, consumer: str, *, timeout: float | None = None) -> None:
    """Delete a consumer. The messages of the stream stay.

    Raises:
        ConsumerNotFoundError: The consumer does not exist.
        StreamNotFoundError: The stream does not exist.
    """
    subject = f"CONSUMER.DELETE.{check_stream_name(stream)}.{check_consumer_name(consumer)}"
    await api.request(subject, timeout=timeout)
