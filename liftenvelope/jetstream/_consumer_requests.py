"""Requests that create, update, look up, delete and change consumers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    JetStreamError,
    StreamNotFoundError,
    TransportError,
    UnsupportedByServerError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.jetstream._consumer_config import ConsumerConfig
from liftenvelope.jetstream._records import check_kept
from liftenvelope.jetstream._server_version import is_older, server_version
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.errors import INACTIVE_TOO_LONG
from liftenvelope.jetstream.infos import ConsumerInfo, StreamInfo
from liftenvelope.jetstream.names import check_consumer_name, check_stream_name

__all__ = [
    "ConsumerAction",
    "change_consumer",
    "consumer_info",
    "create_reader",
    "delete_consumer",
    "put_consumer",
]

_T = TypeVar("_T")
#: Seconds without an answer after which :func:`change_consumer` looks for the reason, and seconds for that.
_SILENCE: Final = 0.5
_LOOK_UP: Final = 1.0

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
        UnsupportedByServerError: The server is too old for a setting, and has ignored it.
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
    info = await api.request_as(ConsumerInfo.from_json, subject, body, timeout=timeout)
    check_kept(config, info.config, f"consumer {name!r} of stream {stream!r}")
    return info


async def create_reader(
    api: Api, stream: str, config: ConsumerConfig, *, timeout: float | None = None
) -> ConsumerInfo:
    """Create a consumer for one reader. It may be inactive for no longer than its stream allows.

    Args:
        api: JetStream API.
        stream: Name of the stream.
        config: Configuration. A longer inactivity threshold than that of the stream's limits is shortened.
        timeout: Seconds for the whole call. Default: the timeout of the API.

    Raises: As for :func:`put_consumer`.
    """
    deadline = Deadline(api.seconds_of(timeout))
    try:
        return await put_consumer(api, stream, config, "create", timeout=deadline.left)
    except JetStreamError as exc:
        if exc.err_code != INACTIVE_TOO_LONG:
            raise
    info = await api.request_as(StreamInfo.from_json, f"STREAM.INFO.{stream}", timeout=deadline.left)
    config = replace(config, inactive_threshold=info.config.consumer_limits.inactive_threshold)
    return await put_consumer(api, stream, config, "create", timeout=deadline.left)


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


async def change_consumer(
    api: Api,
    verb: str,
    since: tuple[int, int],
    info: ConsumerInfo,
    read: Callable[[dict[str, Any]], _T],
    body: Mapping[str, Any] | None,
    timeout: float | None,
) -> _T:
    """Send a request that some servers leave without an answer; if none comes, look for the reason.

    Servers do not answer a verb that they do not know. nats-server 2.15 does not answer RESET for a consumer
    or a stream that is gone either.

    Args:
        api: JetStream API.
        verb: Verb of the request, such as ``RESET``.
        since: First version that knows the verb.
        info: Info of the consumer.
        read: Converts the answer.
        body: Body of the request.
        timeout: Seconds for the whole call. Default: the timeout of the API.

    Raises:
        UnsupportedByServerError: The server that leads the consumer is too old.
        ConsumerNotFoundError, StreamNotFoundError: The consumer, or its stream, no longer exists.
        JetStreamError, CallTimeoutError, TransportError: As for every request.
    """
    deadline = Deadline(api.seconds_of(timeout))
    subject = f"CONSUMER.{verb}.{info.stream_name}.{info.name}"
    asking = asyncio.ensure_future(api.request_as(read, subject, body, timeout=deadline.left))
    # After a look for the reason that has found one, nobody awaits an error of the request.
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait({asking}, timeout=min(_SILENCE, deadline.left))
        if not asking.done():
            await _check_support(api, verb, since, info, min(_LOOK_UP, deadline.left))
        return await asking
    finally:
        asking.cancel()


async def _check_support(
    api: Api, verb: str, since: tuple[int, int], info: ConsumerInfo, timeout: float
) -> None:
    """Look the consumer up; raise if it is gone, or if its server does not know the verb."""
    try:
        found = await consumer_info(api, info.stream_name, info.name, timeout=timeout)
    except (ConsumerNotFoundError, StreamNotFoundError):
        raise
    except (JetStreamError, CallTimeoutError, TransportError):
        return  # the request itself may still be answered, or ends with the same error
    if is_older(found.config.metadata, since):
        text = f"{verb} of a consumer needs nats-server {since[0]}.{since[1]} or later"
        version = server_version(found.config.metadata)
        raise UnsupportedByServerError(f"{text}, got {version or 'one before 2.11'}")
