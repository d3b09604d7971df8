"""Requests to JetStream's API, and what comes back: JSON, or an error of its own class."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors

from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    ServerProtocolError,
    TransportError,
    UsageError,
    jetstream_error,
)
from liftenvelope.jetstream._names import check_domain, check_prefix
from liftenvelope.nats._link import Link
from liftenvelope.nats._outcomes import positive
from liftenvelope.nats._subjects import wire_subject

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = [
    "DEFAULT_PREFIX",
    "ENABLE_JETSTREAM",
    "Api",
    "api_prefix",
    "encode_payload",
    "natural",
    "read_answer",
    "read_as",
    "read_json",
]

_T = TypeVar("_T")
_From = TypeVar("_From")
DEFAULT_PREFIX: Final = "$JS.API"
#: How JetStream is enabled: for the texts of errors.
ENABLE_JETSTREAM: Final = (
    "start nats-server with -js, or put jetstream {} into its configuration; where accounts are configured, "
    "enable it in the account"
)
#: JetStream's numbers for "not enabled for this account" and "not enabled".
_NOT_ENABLED: Final = (10039, 10076)
#: Requests that nobody answers though JetStream is enabled: the consumer is gone, or allow_direct is off.
_ANSWERED_ELSEWHERE: Final = ("CONSUMER.MSG.NEXT.", "DIRECT.GET.")
#: How often a waiting request looks whether its connection is still there, in seconds: nats-py tells nobody.
_LOOK: Final = 0.25
#: Seconds to wait for the answer whether JetStream is enabled.
_ENABLED: Final = 1.0
#: What Python raises where an answer lacks a field, or has one of another type, size or depth.
_JUNK: Final = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
_SHOWN: Final = 100
#: Requests that only read, by what their subjects begin with after the prefix. When the connection is lost
#: under one of them it is repeated; of all others the outcome is unknown then.
_READS: Final = (
    "INFO",
    "STREAM.INFO.",
    "STREAM.LIST",
    "STREAM.NAMES",
    "STREAM.MSG.GET.",
    "CONSUMER.INFO.",
    "CONSUMER.LIST.",
    "CONSUMER.NAMES.",
)


def api_prefix(domain: str | None, prefix: str | None) -> str:
    """The prefix of an API, without a dot at its end.

    Args:
        domain: The JetStream domain.
        prefix: The prefix itself, with or without its last dot; not together with a domain.

    Raises:
        UsageError: Both are given, or one is none.
    """
    if domain is not None and prefix is not None:
        raise UsageError(f"domain {domain!r} and api_prefix {prefix!r} exclude each other")
    if domain is not None:
        check_domain(domain)
        return f"$JS.{domain}.API"
    return DEFAULT_PREFIX if prefix is None else check_prefix(prefix)


class Api:
    """Requests to JetStream on somebody else's connection.

    Args:
        nc: The connection. It is never closed, and its callbacks are not taken.
        prefix: The prefix of the API. Default ``$JS.API``.
        timeout: How long to wait for an answer unless a request says otherwise, in seconds. Default 5.

    Attributes:
        nc: The connection.
        prefix: The prefix, without a dot at its end.
        timeout: The default time-out in seconds.

    Raises:
        UsageError: The prefix or the timeout makes no sense.
    """

    def __init__(self, nc: Client, *, prefix: str = DEFAULT_PREFIX, timeout: float = 5.0) -> None:
        self.nc = nc
        self._link = Link(nc)
        self.prefix = check_prefix(prefix)
        self.timeout = positive("timeout", timeout)

    def key_subject(self, subject: str) -> str:
        """Where to publish for a bucket to store it under a subject that begins with ``$KV.``.

        Between JetStream domains no such subject passes. What is published behind the API's prefix does, and
        the server takes the prefix away (ADR-8, ADR-19).
        """
        return subject if self.prefix == DEFAULT_PREFIX else f"{self.prefix}.{subject}"

    async def request(
        self, subject: str, payload: Mapping[str, Any] | bytes | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Ask, and return the answer.

        Args:
            subject: The subject after the prefix, such as ``CONSUMER.INFO.orders.worker``.
            payload: What to send: a mapping, as JSON; bytes; or nothing.
            timeout: How long to wait in seconds. Default: that of the API.

        While the connection is down a request waits, and goes out with the next one. When the connection is
        lost under a request, one that only reads is repeated.

        Raises:
            JetStreamError: The server refused; its class says why, as far as it has one.
            NoJetStreamError: Nothing answers there.
            CallTimeoutError: No answer came in time. Whether the server did what was asked is unknown.
            TransportError: The connection is closed or draining, or was closed meanwhile. Or it was lost
                before an answer came, of a request that does more than read: with ``sent`` true, whether the
                server did what was asked is unknown.
            ServerProtocolError: The answer is not one that JetStream gives.
            UsageError: The request can't be written, or is larger than the server takes.
        """
        reads = subject.startswith(_READS)
        msg = await self.ask(f"{self.prefix}.{subject}", payload, timeout=timeout, repeat=reads)
        return read_answer(msg.data, subject)

    async def request_as(
        self,
        read: Callable[[dict[str, Any]], _T],
        subject: str,
        payload: Mapping[str, Any] | bytes | None = None,
        *,
        timeout: float | None = None,
    ) -> _T:
        """Ask, and return what ``read`` makes of the answer.

        Raises:
            ServerProtocolError: The answer lacks a field, or has one of another type.
            JetStreamError, CallTimeoutError, TransportError, UsageError: As for :meth:`request`.
        """
        return read_as(
            read, await self.request(subject, payload, timeout=timeout), f"the answer on {subject!r}"
        )

    async def ask(
        self,
        subject: str,
        payload: Mapping[str, Any] | bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeat: bool = False,
    ) -> Msg:
        """Ask on a whole subject, and return the answer as it came.

        Args:
            subject: The subject.
            payload: As for :meth:`request`.
            headers: The headers, none by default.
            timeout: As for :meth:`request`.
            repeat: Whether to ask again when the connection was lost, since asking twice does no harm.

        Raises:
            NoJetStreamError: Nothing answers there.
            CallTimeoutError, TransportError, UsageError: As for :meth:`request`.
        """
        seconds = self.timeout if timeout is None else positive("timeout", timeout)
        wire_subject("subject", subject)
        self._check_open()
        body = encode_payload(payload)
        self.check_size(len(body))
        copy = dict(headers) if headers else None
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            while (msg := await self._ask_once(subject, body, copy, deadline)) is None:
                if not repeat:
                    raise TransportError(
                        f"the NATS connection was lost before an answer came on {subject!r}: whether what "
                        "was asked has been done is unknown",
                        sent=True,
                    )
        except nats.errors.NoRespondersError as exc:
            raise NoJetStreamError(503, self._unanswered(subject)) from exc
        except nats.errors.TimeoutError as exc:
            raise CallTimeoutError(
                f"no answer on {subject!r} within {seconds} s{self._link.refusal}"
            ) from exc
        except nats.errors.Error as exc:
            raise TransportError(f"nats-py could not send the request: {exc}") from exc
        return msg

    def _unanswered(self, subject: str) -> str:
        path = subject.removeprefix(f"{self.prefix}.")
        if path == subject or path.startswith(_ANSWERED_ELSEWHERE):
            return f"nothing answers on {subject!r}"
        doubt = "" if self.prefix == DEFAULT_PREFIX else ", or domain or API prefix are wrong"
        return f"nothing answers on {subject!r}: JetStream is not enabled ({ENABLE_JETSTREAM}){doubt}"

    async def is_enabled(self) -> bool:
        """Ask whether JetStream is enabled; true if nobody can tell."""
        try:
            await self.request("INFO", timeout=min(self.timeout, _ENABLED))
        except NoJetStreamError:
            return False
        except (JetStreamError, CallTimeoutError, TransportError):
            return True
        return True

    async def _ask_once(
        self, subject: str, body: bytes, headers: dict[str, str] | None, deadline: float
    ) -> Msg | None:
        """The answer, None if the connection that the question went out with was lost before it came."""
        epoch, looks = self._link.epoch, 0
        left = max(deadline - asyncio.get_running_loop().time(), 0.001)
        call = asyncio.ensure_future(self.nc.request(subject, body, timeout=left, headers=headers))
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=_LOOK)
                if call.done():
                    break
                if self.nc.is_closed:
                    raise TransportError("the NATS connection was closed before an answer came", sent=True)
                # Twice in a row: nats-py counts a new connection a moment before it is there.
                looks = looks + 1 if self._link.epoch > epoch else 0
                if looks == 2:
                    return None
            return call.result()
        finally:
            call.cancel()

    async def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Send on a whole subject, and wait for nothing.

        Raises:
            TransportError, UsageError: As for :meth:`request`.
        """
        wire_subject("subject", subject)
        if reply:
            wire_subject("reply", reply)
        self._check_open()
        self.check_size(len(payload))
        try:
            await self.nc.publish(subject, payload, reply=reply)
        except nats.errors.Error as exc:
            raise TransportError(f"nats-py could not send the request: {exc}") from exc

    def check_size(self, size: int) -> None:
        """Raise UsageError if the server takes no message of so many bytes."""
        if size > (limit := self.nc.max_payload):
            raise UsageError(f"the message has {size} bytes; the server takes {limit}")

    def _check_open(self) -> None:
        if self.nc.is_closed:
            raise TransportError("the NATS connection is closed")
        if self.nc.is_draining_pubs:
            raise TransportError("the NATS connection is being drained")


def encode_payload(payload: Mapping[str, Any] | bytes | None) -> bytes:
    """A payload as bytes."""
    if payload is None:
        return b""
    if isinstance(payload, bytes):
        return payload
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def read_as(read: Callable[[_From], _T], answer: _From, what: str) -> _T:
    """Read what a server sent. This is the one place that maps what fails there to an error of this package.

    Args:
        read: Returns the value; raises what Python raises where a field is missing or wrong.
        answer: What the server sent.
        what: What it is, such as ``the answer on '$JS.API.INFO'``; begins the error's text.

    Raises:
        ServerProtocolError: It can't be read.
    """
    try:
        return read(answer)
    except _JUNK as exc:
        why = f"{type(exc).__name__}: {exc}"[:_SHOWN]
        raise ServerProtocolError(f"{what} can't be read ({why}): {repr(answer)[:_SHOWN]}", 0, True) from exc


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in what a server sent.

    Raises:
        ServerProtocolError: It has none.
    """
    return read_as(_object, data, what)


def _object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError(f"expected a JSON object, got {type(found).__name__}")
    return found


def natural(value: object) -> int:
    """A sequence or a count that a server sent: an integer from 0 to 2**63 - 1.

    Raises:
        ValueError: It is something else.
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"expected a number from 0 to 2**63 - 1, got {value!r:.40}")
    return value


def read_answer(data: bytes, subject: str) -> dict[str, Any]:
    """The JSON of an answer, unless it is an error.

    Raises:
        JetStreamError: It is one.
        ServerProtocolError: It is no JSON object, or an error without its fields.
    """
    answer = read_json(data, f"the answer on {subject!r}")
    if error := answer.get("error"):
        raise read_as(_error, error, f"the error on {subject!r}")
    return answer


def _error(error: dict[str, Any]) -> JetStreamError:
    err_code, description = int(error.get("err_code", 0)), str(error.get("description", ""))
    if err_code in _NOT_ENABLED:
        description = f"{description}: {ENABLE_JETSTREAM}"
    return jetstream_error(int(error.get("code", 0)), err_code, description)
