"""Read messages of a stream by sequence or subject, without a consumer (ADR-8, ADR-31)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import as_text
from liftenvelope._deadlines import Deadline
from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    MessageNotFoundError,
    NoJetStreamError,
    TransportError,
    UnsupportedByServerError,
    jetstream_error,
)
from liftenvelope.jetstream._records import read_moment
from liftenvelope.jetstream._server_version import is_older
from liftenvelope.jetstream.api import Api, encode_payload, natural, parse_ns, read_as
from liftenvelope.jetstream.statuses import NO_HEADERS, status_number
from liftenvelope.nats.expiry import catch_up
from liftenvelope.nats.headers import Headers, headers_of
from liftenvelope.nats.link import Link, last_error_of
from liftenvelope.nats.receiving import read_directly

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["StoredMessage", "direct_message", "direct_messages", "stored_message"]

#: Reply to a direct request: headers and payload.
_StoredAnswer = tuple[Headers, bytes]
_NOT_FOUND: Final = 10037
_BATCHES_SINCE: Final = (2, 11)
_BATCHES: Final = "direct reads in batches need nats-server 2.11 or later"
#: Seconds between connection checks of a waiting request, and the consecutive checks that must find the
#: connection lost.
_LOOK: Final = 0.25
_LOOKS: Final = 2
#: Headers that the server adds to a message sent directly.
_STREAM: Final = "Nats-Stream"
_SUBJECT: Final = "Nats-Subject"
_SEQUENCE: Final = "Nats-Sequence"
_TIME: Final = "Nats-Time-Stamp"
_PENDING: Final = "Nats-Num-Pending"
_ADDED: Final = frozenset((_STREAM, _SUBJECT, _SEQUENCE, _TIME, _PENDING, "Nats-Last-Sequence"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """Message stored in a stream.

    Attributes:
        stream: Name of the stream, or of the mirror that answered.
        subject: Subject.
        sequence: Sequence in the stream.
        data: Payload.
        headers: Headers. If a name is repeated, a direct read through nats-py keeps only its last value. An
            accelerated connection, or a read that is not direct, keeps all values.
        time: Time when the message was stored, in UTC, to the microsecond.
        timestamp_ns: The same time, in nanoseconds since 1970.
        pending: In a batch: number of further matches, in this batch or after it. None otherwise. For
            ``get_messages``, nats-server 2.11 counts the message itself as well.
    """

    stream: str
    subject: str
    sequence: int
    data: bytes
    headers: Headers
    time: datetime
    timestamp_ns: int
    pending: int | None = None


def stored_message(stream: str, message: Mapping[str, Any]) -> StoredMessage:
    """Parse the reply to a request for one message."""
    return StoredMessage(
        stream=stream,
        subject=as_text("subject", message["subject"]),
        sequence=natural(message["seq"]),
        data=base64.b64decode(message.get("data") or ""),
        headers=headers_of(base64.b64decode(message.get("hdrs") or "")),
        time=_time(message["time"]),
        timestamp_ns=parse_ns(message["time"]),
    )


def _time(text: str) -> datetime:
    moment = read_moment(text)
    if moment is None:
        raise ValueError("a stored message has a time")
    return moment


async def direct_messages(
    api: Api, stream: str, request: Mapping[str, Any], *, batch: bool, timeout: float, subject: str = ""
) -> AsyncGenerator[StoredMessage, None]:
    """Send a direct request and iterate over the replies: one message, or a batch up to the status EOB.

    Args:
        api: JetStream API.
        stream: Name of the stream.
        request: Body of the request.
        batch: True if the request is for a batch.
        timeout: Seconds to wait for each message.
        subject: Suffix of the request subject after the stream name.
    """
    link = Link(api.nc)
    epoch, before = link.epoch, link.report
    full_subject = f"{api.prefix}.DIRECT.GET.{stream}{subject}"
    async with _answers(api, full_subject, request) as answers:
        while True:
            try:
                headers, data = await _next(api, answers, stream, timeout, epoch)
            except CallTimeoutError as exc:
                raise CallTimeoutError(f"{exc}{link.refusal(full_subject, since=before)}") from None
            # The server adds Nats-Sequence to every message, also to one whose headers look like a status.
            if _SEQUENCE not in headers:
                if headers.get("Status") == "204":
                    return
                failure = _failure(headers, stream, request, batch=batch)
                if batch and "seq" in request and isinstance(failure, MessageNotFoundError):
                    await _check_batches(api, stream, timeout)
                raise failure
            if batch and _PENDING not in headers:
                raise UnsupportedByServerError(f"the server answered one message only: {_BATCHES}")
            yield read_as(_direct, (headers, data), f"a message of stream {stream!r}")
            if not batch:
                return


@asynccontextmanager
async def _answers(
    api: Api, subject: str, request: Mapping[str, Any]
) -> AsyncIterator[asyncio.Queue[_StoredAnswer]]:
    """Send a request and collect its replies, of which there may be any number, in a queue."""
    # Not nats-py's request(): it treats a stored message with a header "Status: 503" as no responders.
    link = Link(api.nc)
    link.check_open()
    queue: asyncio.Queue[_StoredAnswer] = asyncio.Queue()

    async def take(msg: Msg) -> None:
        queue.put_nowait((Headers((msg.headers or {}).items()), msg.data))

    def take_all(messages: list[tuple[str, bytes, bytes | None, bytes]]) -> None:
        for _, _, block, data in messages:
            queue.put_nowait((headers_of(block or b""), data))

    inbox = link.new_inbox()
    subscription = read_directly(api.nc, await link.subscribe(inbox, take), take_all)
    try:
        await api.send(subject, encode_payload(request), reply=inbox)
        yield queue
    finally:
        await subscription.unsubscribe()


async def direct_message(
    api: Api, stream: str, request: Mapping[str, Any], *, timeout: float
) -> StoredMessage:
    """Read one message by a direct request; repeat the request if the connection was lost.

    Args:
        api: JetStream API.
        stream: Name of the stream.
        request: Body of the request.
        timeout: Seconds to wait in total.
    """
    deadline = Deadline(timeout)
    while True:
        answers = direct_messages(api, stream, request, batch=False, timeout=deadline.left)
        try:
            return await anext(answers)
        except _LostError:
            continue
        finally:
            await answers.aclose()


class _LostError(TransportError):
    """The connection was lost during a request, so its remaining replies are lost too."""


async def _next(
    api: Api, answers: asyncio.Queue[_StoredAnswer], stream: str, timeout: float, epoch: int
) -> _StoredAnswer:
    link, looks = Link(api.nc), 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while answers.empty():
        if api.nc.is_closed:
            why = f"the NATS connection was closed before all messages came{last_error_of(api.nc)}"
            raise TransportError(why, sent=True)
        # Require several checks in a row: nats-py counts a reconnect a moment before it is established.
        looks = looks + 1 if link.epoch > epoch else 0
        if looks == _LOOKS:
            raise _LostError(
                "the NATS connection was lost before all messages came: ask for the rest", sent=True
            )
        if loop.time() >= deadline:
            raise CallTimeoutError(f"nothing more came from stream {stream!r} within {timeout:.3g} s")
        due = min(loop.time() + _LOOK, deadline)
        try:
            # Not wait_for(): it swallows a cancellation that arrives together with a reply (Python 3.11).
            async with asyncio.timeout_at(due):
                return await answers.get()
        except TimeoutError:
            await catch_up(due)
    return answers.get_nowait()


async def _check_batches(api: Api, stream: str, timeout: float) -> None:
    """Raise UnsupportedByServerError if the server is older than 2.11, and read the first message alone."""
    try:
        metadata = await api.request_as(_metadata, f"STREAM.INFO.{stream}", timeout=timeout)
    except (JetStreamError, CallTimeoutError, TransportError):
        return  # the answer to the read counts
    if is_older(metadata, _BATCHES_SINCE):
        raise UnsupportedByServerError(f"the server takes the request for one message: {_BATCHES}")


def _metadata(info: Mapping[str, Any]) -> dict[str, str]:
    return dict(info["config"].get("metadata") or {})


def _failure(
    headers: Mapping[str, str], stream: str, request: Mapping[str, Any], *, batch: bool
) -> JetStreamError | UnsupportedByServerError:
    if not headers:
        return UnsupportedByServerError(f"{NO_HEADERS}: read stream {stream!r} by get_message(direct=False)")
    status = headers.get("Status", "")
    description = headers.get("Description", "") or f"status {status!r}"
    if status == "404":
        return MessageNotFoundError(
            404, f"{description} in stream {stream!r} for {dict(request)}", _NOT_FOUND
        )
    if status == "408" and batch:  # an older server sees none of the fields of the request
        return UnsupportedByServerError(f"the server takes the request for an empty one: {_BATCHES}")
    if status == "503":
        return NoJetStreamError(
            503, f"no server answers direct gets of stream {stream!r}: set allow_direct=True in its config"
        )
    return jetstream_error(status_number(status) or 500, 0, description)


def _direct(answer: _StoredAnswer) -> StoredMessage:
    headers, data = answer
    pending = headers.get(_PENDING)
    return StoredMessage(
        stream=headers[_STREAM],
        subject=headers[_SUBJECT],
        sequence=int(headers[_SEQUENCE]),
        data=data,
        headers=Headers(pair for pair in headers.pairs if pair[0] not in _ADDED),
        time=_time(headers[_TIME]),
        timestamp_ns=parse_ns(headers[_TIME]),
        pending=None if pending is None else int(pending),
    )
