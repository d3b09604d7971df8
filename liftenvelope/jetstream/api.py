"""Requests to the JetStream API: sends them, parses the JSON answers and raises typed errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors

from liftenvelope._checks import as_count, as_seconds
from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    ServerProtocolError,
    TransportError,
    UsageError,
    jetstream_error,
)
from liftenvelope.jetstream.names import check_domain, check_prefix
from liftenvelope.nats.expiry import wait_until
from liftenvelope.nats.link import Link, last_error_of, max_payload_of
from liftenvelope.nats.reports import ViolationWatch
from liftenvelope.nats.subjects import wire_subject

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = [
    "DEFAULT_PREFIX",
    "ENABLE_JETSTREAM",
    "MAX_LISTED",
    "Api",
    "api_prefix",
    "encode_payload",
    "is_restored",
    "natural",
    "parse_ns",
    "read_answer",
    "read_as",
    "read_json",
]

_T = TypeVar("_T")
_From = TypeVar("_From")
DEFAULT_PREFIX: Final = "$JS.API"
#: Default of the maximum number of items of a listing.
MAX_LISTED: Final = 1_000_000
#: Instructions to enable JetStream, for error messages.
ENABLE_JETSTREAM: Final = (
    "start nats-server with -js, or put jetstream {} into its configuration; where accounts are configured, "
    "enable it in the account"
)
#: JetStream error codes for "not enabled for this account" and "not enabled".
_NOT_ENABLED: Final = (10039, 10076)
#: Not found, and in use with another configuration.
_ABOUT_STREAMS: Final = (10058, 10059)
_ABOUT_CONSUMERS: Final = (10014, 10148, 10149)
#: Requests that may get no answer although JetStream is enabled: no such consumer, or allow_direct is off.
_ANSWERED_ELSEWHERE: Final = ("CONSUMER.MSG.NEXT.", "DIRECT.GET.")
#: Seconds between checks of the connection during a request: nats-py reports neither a loss nor a refused
#: permission to requests.
_LOOK: Final = 0.25
#: Maximum timeout in seconds of the request that tests if JetStream is enabled.
_ENABLED: Final = 1.0
#: Exceptions raised by Python for an answer with a missing field or one of a wrong type, size or depth.
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
#: Time by which a message must be older than its stream to come from a backup. Messages have their times from
#: the clock of the stream's leader, and the stream from that of another server, which may be ahead.
_OLDER_NS: Final = 5_000_000_000
#: Subjects of read-only requests, as prefixes after the API prefix. If the connection is lost during a
#: read-only request, the request is repeated. The outcome of any other request is then unknown.
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
    """Return the API prefix of a domain, or check a given prefix; the result has no trailing dot.

    Args:
        domain: JetStream domain.
        prefix: API prefix, with or without its trailing dot; excludes ``domain``.

    Raises:
        UsageError: Both arguments are given, or one of them is invalid.
    """
    if domain is not None and prefix is not None:
        raise UsageError(
            f"domain {domain!r} and api_prefix {prefix!r} exclude each other; leave one of them out"
        )
    if domain is not None:
        check_domain(domain)
        return f"$JS.{domain}.API"
    return DEFAULT_PREFIX if prefix is None else check_prefix(prefix)


class Api:
    """Sends JetStream API requests on the user's connection.

    Args:
        nc: User's connection, which is never closed here and keeps its callbacks.
        prefix: API prefix. Default ``$JS.API``.
        timeout: Default timeout of a request in seconds. Default 5.
        max_listed: Maximum number of items of a listing. Default 1,000,000.

    Attributes:
        nc: User's connection.
        prefix: API prefix without its trailing dot.
        timeout: Default timeout of a request in seconds.
        max_listed: Maximum number of items of a listing.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        nc: Client,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 5.0,
        max_listed: int = MAX_LISTED,
    ) -> None:
        self.nc = nc
        self._link = Link(nc)
        self.prefix = check_prefix(prefix)
        self.timeout = as_seconds("timeout", timeout)
        self.max_listed = as_count("max_listed", max_listed)

    def key_subject(self, subject: str) -> str:
        """Return the publish subject for a key-value subject, which begins with ``$KV.``.

        Subjects that begin with ``$KV.`` do not cross JetStream domains. Subjects with the API prefix do, and
        the server removes the prefix (ADR-8, ADR-19).
        """
        return subject if self.prefix == DEFAULT_PREFIX else f"{self.prefix}.{subject}"

    def check_listed(self, count: int, what: str) -> None:
        """Check how many items of a listing have come. A hostile server may list without end.

        Raises:
            ServerProtocolError: There are more than ``max_listed``.
        """
        if count > self.max_listed:
            raise ServerProtocolError(
                f"the server listed more than {self.max_listed:,} {what}: raise max_listed of JetStream if "
                "there are so many"
            )

    def seconds_of(self, timeout: float | None) -> float:
        """Return the timeout of a call in seconds: the default one if it is None.

        Raises:
            UsageError: The timeout is invalid.
        """
        return self.timeout if timeout is None else as_seconds("timeout", timeout)

    async def request(
        self, subject: str, payload: Mapping[str, Any] | bytes | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request and return the JSON of the answer.

        While the connection is down, the request waits and is sent on the next connection. If the connection
        is lost during a read-only request, the request is repeated.

        Args:
            subject: Subject after the prefix, such as ``CONSUMER.INFO.orders.worker``.
            payload: Mapping to send as JSON, bytes, or None for an empty payload.
            timeout: Seconds to wait for the answer. Default: the timeout of the API.

        Raises:
            JetStreamError: The server refused the request. Known errors have their own subclasses.
            NoJetStreamError: Nothing answers on the subject.
            CallTimeoutError: No answer came in time. The outcome of the request is unknown. If the server
                reports that the request is not permitted, the error is raised at once.
            TransportError: The connection is closed or draining, was closed during the request, or was lost
                during a request that is not read-only. If ``sent`` is true, the outcome is unknown.
            ServerProtocolError: The answer is not a valid JetStream answer.
            UsageError: The request can't be encoded, or exceeds the server's maximum payload.
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
        """Send a request and convert the answer with ``read``.

        Raises:
            ServerProtocolError: The answer lacks a field, or a field has the wrong type.
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
        """Send a request on a complete subject and return the answer unparsed.

        Args:
            subject: Complete subject, including the prefix.
            payload: As for :meth:`request`.
            headers: Headers of the request. Default: none.
            timeout: As for :meth:`request`.
            repeat: True to repeat the request if the connection is lost; only for idempotent requests.

        Raises:
            NoJetStreamError: Nothing answers on the subject.
            CallTimeoutError, TransportError, UsageError: As for :meth:`request`.
        """
        seconds = self.seconds_of(timeout)
        wire_subject("subject", subject)
        self._link.check_open()
        body = encode_payload(payload)
        self.check_size(len(body))
        copy = dict(headers) if headers else None
        deadline = asyncio.get_running_loop().time() + seconds
        before = self._link.report
        try:
            with ViolationWatch(self.nc, "publish", subject) as watch:
                while (msg := await self._ask_once(subject, body, copy, deadline, watch)) is None:
                    if not repeat:
                        raise TransportError(
                            f"the NATS connection was lost before an answer came on {subject!r}: the "
                            "outcome of the request is unknown",
                            sent=True,
                        )
        except nats.errors.NoRespondersError as exc:
            raise NoJetStreamError(503, self._unanswered(subject)) from exc
        except nats.errors.TimeoutError as exc:
            why = self._link.refusal(subject, since=before)
            if not self._link.is_connected:
                why = "; the NATS connection is down"
            raise CallTimeoutError(f"no answer on {subject!r} within {seconds:.4g} s{why}") from exc
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
        """Ask the server if JetStream is enabled; return true if the answer is unknown."""
        try:
            await self.request("INFO", timeout=min(self.timeout, _ENABLED))
        except NoJetStreamError:
            return False
        except (JetStreamError, CallTimeoutError, TransportError):
            return True
        return True

    async def _ask_once(
        self,
        subject: str,
        body: bytes,
        headers: dict[str, str] | None,
        deadline: float,
        watch: ViolationWatch,
    ) -> Msg | None:
        """Send a request once; return None if its connection was lost before an answer came."""
        loop, epoch, looks = asyncio.get_running_loop(), self._link.epoch, 0
        # nats-py's own timeout comes before an answer that is in the socket after a blocked loop.
        never: Any = None
        call = asyncio.ensure_future(self.nc.request(subject, body, timeout=never, headers=headers))
        # Cancelled while it gets its answer, the call may still end with an error that nobody awaits.
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while not call.done():
                await wait_until(call, min(loop.time() + _LOOK, deadline))
                if call.done():
                    break
                if watch.report:  # of this one, or of one on the same subject or one that differs in case
                    raise CallTimeoutError(f"no answer on {subject!r}; the server said: {watch.report}")
                if loop.time() >= deadline:
                    raise nats.errors.TimeoutError
                if self.nc.is_closed:
                    why = f"the NATS connection was closed before an answer came{last_error_of(self.nc)}"
                    raise TransportError(why, sent=True)
                # Two checks in a row: nats-py counts a reconnect shortly before the connection is usable.
                looks = looks + 1 if self._link.epoch > epoch else 0
                if looks == 2:
                    return None
            return call.result()
        finally:
            _cancel(call)

    async def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        """Publish on a complete subject without waiting for an answer.

        Raises:
            TransportError, UsageError: As for :meth:`request`.
        """
        wire_subject("subject", subject)
        if reply:
            wire_subject("reply", reply)
        self._link.check_open()
        self.check_size(len(payload))
        try:
            await self.nc.publish(subject, payload, reply=reply)
        except nats.errors.Error as exc:
            raise TransportError(f"nats-py could not send the request: {exc}") from exc

    def check_size(self, size: int) -> None:
        """Raise UsageError if a message of ``size`` bytes exceeds the server's maximum payload."""
        if size > (limit := max_payload_of(self.nc)):
            raise UsageError(f"the message must be at most {limit} bytes, the server's limit, got {size}")


def _cancel(call: asyncio.Future[Any]) -> None:
    """Cancel a call until it has ended: nats-py swallows a cancellation while it flushes."""
    if call.cancel():
        asyncio.get_running_loop().call_later(_LOOK, _cancel, call)


def encode_payload(payload: Mapping[str, Any] | bytes | None) -> bytes:
    """Encode a payload: a mapping as JSON, bytes unchanged, None as no bytes."""
    if payload is None:
        return b""
    if isinstance(payload, bytes):
        return payload
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def read_as(read: Callable[[_From], _T], answer: _From, what: str) -> _T:
    """Convert server data with ``read``, and turn a failure into a ServerProtocolError.

    Only this function maps Python's exceptions for malformed data to an error of this package.

    Args:
        read: Returns the value, or raises a built-in exception if a field is missing or wrong.
        answer: Data from the server.
        what: Description of the data, such as ``the answer on '$JS.API.INFO'``; starts the error message.

    Raises:
        ServerProtocolError: The data is malformed.
    """
    try:
        return read(answer)
    except _JUNK as exc:
        why = f"{type(exc).__name__}: {exc}"[:_SHOWN]
        raise ServerProtocolError(f"{what} can't be read ({why}): {repr(answer)[:_SHOWN]}", 0, True) from exc


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """Parse server data as a JSON object.

    Raises:
        ServerProtocolError: The data is not a JSON object.
    """
    return read_as(_object, data, what)


def _object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError(f"expected a JSON object, got {type(found).__name__}")
    return found


def parse_ns(text: str) -> int:
    """Parse a JetStream timestamp (RFC 3339) to nanoseconds since 1970; 0 for the zero time (year 1).

    Example:
        >>> parse_ns("2026-01-02T03:04:05.123456789Z")
        1767323045123456789
    """
    if text.startswith("0001-"):
        return 0
    whole, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789")
    digits = rest[: len(rest) - len(zone)]
    seconds = int(datetime.fromisoformat(whole + zone).timestamp())
    return seconds * 1_000_000_000 + int(digits.ljust(9, "0"))


def is_restored(created_ns: int, oldest_ns: int) -> bool:
    """Return True if a stream has a message that is older than itself, from a backup or an origin.

    A stream that is restored from a backup, or mirrors another one, has the sequences of that one. The
    message must be older by more than 5 s.

    Args:
        created_ns: Creation time of the stream, in ns since 1970.
        oldest_ns: Time of its oldest message, in ns since 1970; 0 for none.
    """
    return 0 < oldest_ns < created_ns - _OLDER_NS


def natural(value: object) -> int:
    """Check a sequence or count from a server: an integer from 0 to 2**63 - 1.

    Raises:
        ValueError: The value is not such an integer.
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"expected a number from 0 to 2**63 - 1, got {value!r:.40}")
    return value


def read_answer(data: bytes, subject: str) -> dict[str, Any]:
    """Parse an answer and return its JSON object.

    Raises:
        JetStreamError: The answer reports an error.
        ServerProtocolError: The answer is not a JSON object, or its error is malformed.
    """
    answer = read_json(data, f"the answer on {subject!r}")
    if error := answer.get("error"):
        raise read_as(partial(_error, subject), error, f"the error on {subject!r}")
    return answer


def _error(subject: str, error: dict[str, Any]) -> JetStreamError:
    err_code, description = int(error.get("err_code", 0)), str(error.get("description", ""))
    if err_code in _NOT_ENABLED:
        description = f"{description}: {ENABLE_JETSTREAM}"
    elif names := _named(subject, err_code):
        description = f"{description}: {names}"
    return jetstream_error(int(error.get("code", 0)), err_code, description)


def _named(subject: str, err_code: int) -> str:
    """Return the names that an error is about, out of the subject: the server names nothing."""
    tokens = subject.split(".")
    if tokens[:2] == ["STREAM", "MSG"]:
        del tokens[1]
    if tokens[1:3] == ["LEADER", "STEPDOWN"]:
        del tokens[1]
    if tokens[0] not in ("STREAM", "CONSUMER") or len(tokens) < 3:
        return ""
    if err_code in _ABOUT_STREAMS:
        return repr(tokens[2])
    return f"{tokens[3]!r} of stream {tokens[2]!r}" if err_code in _ABOUT_CONSUMERS and tokens[3:] else ""
