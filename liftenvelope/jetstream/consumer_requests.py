"""Making, changing, finding and deleting consumers, for the context and for streams alike."""

from __future__ import annotations

import secrets
from typing import Literal

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream._names import check_consumer_name, check_stream_name
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.consumer_config import ConsumerConfig
from liftenvelope.jetstream.infos import ConsumerInfo

__all__ = ["ConsumerAction", "consumer_info", "delete_consumer", "put_consumer"]

#: What may happen: it must be new, it must be there, or either. The server's words.
ConsumerAction = Literal["create", "update", ""]


async def put_consumer(
    api: Api, stream: str, config: ConsumerConfig, action: ConsumerAction, *, timeout: float | None = None
) -> ConsumerInfo:
    """Make a consumer, or change one.

    Raises:
        ConsumerExistsError: It is there, with another configuration, and was to be new.
        ConsumerNotFoundError: It is not there, and was to be changed.
        StreamNotFoundError: There is no such stream.
        JetStreamError: The server takes no such configuration.
        UsageError: A name makes no sense, or one to be changed has none.
    """
    check_stream_name(stream)
    if not isinstance(config, ConsumerConfig):
        raise UsageTypeError(f"config must be a ConsumerConfig, not {type(config).__name__}")
    name = config.name or config.durable_name
    if name is None:
        if action == "update":
            raise UsageError(f"a consumer that is to be changed must be named: {config!r}")
        name = secrets.token_hex(8)  # made here, so that asking twice by mistake does not make two
    subject = f"CONSUMER.CREATE.{stream}.{name}"
    if config.filter_subject:
        subject += f".{config.filter_subject}"
    body = {"stream_name": stream, "config": {**config.to_json(), "name": name}, "action": action}
    return await api.request_as(ConsumerInfo.from_json, subject, body, timeout=timeout)


async def consumer_info(
    api: Api, stream: str, consumer: str, *, timeout: float | None = None
) -> ConsumerInfo:
    """What the server says of a consumer.

    Raises:
        ConsumerNotFoundError: There is no such consumer.
        StreamNotFoundError: There is no such stream.
    """
    subject = f"CONSUMER.INFO.{check_stream_name(stream)}.{check_consumer_name(consumer)}"
    return await api.request_as(ConsumerInfo.from_json, subject, timeout=timeout)


async def delete_consumer(api: Api, stream: str, consumer: str, *, timeout: float | None = None) -> None:
    """Delete a consumer; what it has of the stream's messages stays there.

    Raises:
        ConsumerNotFoundError: There is no such consumer.
        StreamNotFoundError: There is no such stream.
    """
    subject = f"CONSUMER.DELETE.{check_stream_name(stream)}.{check_consumer_name(consumer)}"
    await api.request(subject, timeout=timeout)
