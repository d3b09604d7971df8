"""Common base of the JetStream publishers: a connection with an ack inbox, and reconnects."""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._backoff import Patience
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk._engine.event_log import log
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    PermissionDeniedError,
    StreamNotFoundError,
    TransportError,
    UsageError,
    WrongStreamError,
)
from liftenvelope.jetstream.publish_frames import PubAck, read_ack

if TYPE_CHECKING:
    from liftenvelope import _native
    from liftenvelope.bulk._jetstream.frame import Frame
    from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
    from liftenvelope.bulk._jetstream.source import JetStreamSource
    from liftenvelope.bulk._outgoing import Written
    from liftenvelope.bulk._writes.portions import Portion

__all__ = ["MOST_BYTES", "NO_RESPONDERS", "PIECE", "RowPublisher", "RowTooLongError", "WriteLink"]

#: Upper bound of accepted sequences: they are kept as signed 64-bit integers. No stream reaches the bound.
_SEQUENCES: Final = 2**63
#: Bytes to send at a time.
PIECE: Final = 128 * 1024
#: Maximum bytes in flight. The server queues at most 128 MiB of a stream's messages and drops the rest.
MOST_BYTES: Final = 16 * 1024 * 1024
#: Seconds to wait for an answer before calling ``idle``.
_TURN: Final = 0.5
NO_RESPONDERS: Final = 503


class RowTooLongError(UsageError):
    """A row is longer than the server's largest message; nothing of its portion was sent."""


class WriteLink:
    """A NATS connection with an inbox for acks.

    Args:
        source: The stream.

    Attributes:
        source: The stream.
        inbox: Prefix of the subjects of acks, including the last dot.
        sid: Number of the subscription that delivers acks.
        config: Config of the stream, from the server.
        version: Version of the server.
        max_payload: Longest message in bytes that the server accepts.
    """

    def __init__(self, source: JetStreamSource) -> None:
        self.source = source
        self.inbox = f"{source.access.new_inbox()}.".encode()
        self.sid = 0
        self.config: dict[str, Any] = {}
        self.version = ""
        self.max_payload = 0
        self._socket: NatsSocket | None = None

    @property
    def is_open(self) -> bool:
        """True if there is a connection, as far as is known."""
        return self._socket is not None

    @property
    def socket(self) -> NatsSocket:
        """The connection, which must be open."""
        assert self._socket is not None
        return self._socket

    def connect(self) -> None:
        """Connect, fetch the stream's config, and subscribe to the inbox.

        Raises:
            StreamNotFoundError: There is no such stream.
            NoJetStreamError, TransportError, CallTimeoutError: No server could be reached.
        """
        found = self.source.connect()
        try:
            subject = f"{self.source.prefix}.STREAM.INFO.{self.source.stream}"
            self.config = found.ask(lambda answer: dict(answer["config"]), subject)
            self.sid = found.subscribe(f"{self.inbox.decode()}>")
        except BaseException as exc:
            found.close()
            if isinstance(exc, StreamNotFoundError):
                raise self.source.no_stream(exc) from exc
            raise
        self.version, self.max_payload = str(found.info.get("version", "")), found.max_payload
        self._socket = found

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def drop_if_dead(self) -> None:
        """Close the connection unless the server answers. Only while no answer to a row is awaited."""
        try:
            self.socket.flush(self.source.access.stall_timeout)
        except LiftEnvelopeError:  # whether the server can be used is for the next connection to say
            self.close()

    def wait(
        self,
        heard: Callable[[], bool],
        idle: Callable[[], None] | None = None,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Receive until a condition holds.

        Args:
            heard: Consumes the socket's buffer; returns True once the condition holds.
            idle: Called after every half second in which nothing came.
            progress: Returns what changes with an answer that counts. Default: every answer counts. What
                ``idle`` sends may be answered for ever, by a server without the stream.

        Raises:
            AckTimeoutError: No answer that counts came for the ``timeout`` of the access.
        """
        since, arrivals, before = time.monotonic(), 0, None
        while not heard():
            now, state = time.monotonic(), arrivals if progress is None else progress()
            if state != before:
                since, before = now, state
            elif now - since >= self.source.access.timeout:
                raise AckTimeoutError(f"no ack came for {now - since:.1f} s", "")
            if self.socket.fill(_TURN):
                arrivals += 1
            elif idle is not None:
                idle()

    def wait_past_denials(
        self,
        heard: Callable[[], bool],
        idle: Callable[[], None] | None = None,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Receive until a condition holds, as :meth:`wait`, also past publishes that the server denies."""

        def heard_the_rest() -> bool:
            while True:
                with contextlib.suppress(PermissionDeniedError):
                    return heard()

        self.wait(heard_the_rest, idle, progress)

    def look(self, heard: Callable[[], bool]) -> None:
        """Consume what has arrived, without waiting."""
        while self.socket.fill(0):
            heard()

    def read(self, frame: Frame, row: int) -> PubAck | JetStreamError:
        """Parse an answer: return the ack of our stream, or the error instead of an ack.

        Args:
            frame: The answer.
            row: Number of the row that the answer is for.
        """
        if (status := frame.status) is not None:
            text = (
                f"no stream records the subject of row {row}" if status.code == NO_RESPONDERS else str(status)
            )
            return NoJetStreamError(status.code, text)
        ack = read_ack(frame.payload, _SEQUENCES)
        stream = ack.stream if isinstance(ack, PubAck) else stream_named(frame.payload)
        if stream not in (None, self.source.stream):
            return WrongStreamError(400, f"the subject of row {row} is recorded by stream {stream!r}")
        return ack


def stream_named(answer: bytes) -> str | None:
    """Return the name of the stream in an error answer; None without a name."""
    try:
        return json.loads(answer).get("stream") or None
    except (ValueError, AttributeError, RecursionError):
        return None


class RowPublisher(ABC):
    """Base class of the methods to publish rows: resends after a lost connection if that is safe.

    Args:
        link: Connection to publish over.
    """

    def __init__(self, link: WriteLink) -> None:
        self._link = link
        self._subject: bytes | None = None

    @property
    @abstractmethod
    def acked(self) -> int:
        """Number of rows known to be stored."""

    @property
    @abstractmethod
    def unknown(self) -> int:
        """Number of further rows that may be stored."""

    @abstractmethod
    def add(self, portion: Portion) -> None:
        """Publish a portion. Some of its rows may still lack their ack on return.

        Raises:
            UsageError: A row is too long; nothing of the portion was sent.
            WriteFailedError: A row was refused, or its outcome is unknown.
        """

    @abstractmethod
    def finish(self) -> Written:
        """Wait for all acks and return the outcome.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """

    @abstractmethod
    def _lost(self) -> bool:
        """Prepare for a new connection; return True if the write can continue over it safely."""

    @abstractmethod
    def _connected(self) -> None:
        """Continue over a new connection. Called after the connection is open, before the next step."""

    @abstractmethod
    def _settle_denied(self) -> None:
        """Find out which rows are stored after the server has denied the publish of one.

        Raises:
            TransportError, AckTimeoutError: The server did not say it of all rows.
            WriteFailedError: A row was refused as well.
        """

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run a step over the connection. After a failure, repeat it over a new connection if that is safe.

        The step must be repeatable: it continues from the state that :meth:`_lost` and :meth:`_connected`
        leave. Retries end after ``reconnect_wait`` seconds in which no further row was acked.

        Raises:
            WriteFailedError: The step failed and can't be repeated, or retries took too long.
            LiftEnvelopeError: The server denied the publish, or broke the protocol, and no row is stored.
        """
        patience = Patience(self._link.source.access.reconnect_wait)
        while True:
            acked = self.acked
            try:
                if not self._link.is_open:
                    self._link.connect()
                    self._connected()
                step()
                return
            except (TransportError, CallTimeoutError, AckTimeoutError, NoJetStreamError) as exc:
                self._link.close()
                now = time.monotonic()
                if self.acked > acked:
                    patience.progressed(now)
                pause = patience.failed(now)
                if not self._lost() or pause is None:
                    raise self._failed(exc) from exc
                stream = self._link.source.stream
                told = {"stream": stream, "acked": self.acked, "error": without_secrets(exc)}
                log.warning(
                    "%(stream)s: the write is lost, %(acked)d rows are stored, writing on: %(error)s",
                    told,
                    extra=told,
                )
                time.sleep(pause)
            except WriteFailedError:
                raise
            except JetStreamError as exc:  # the stream no longer exists
                raise self._failed(exc) from exc
            except LiftEnvelopeError as exc:
                if isinstance(exc, PermissionDeniedError) and self._link.is_open:
                    with contextlib.suppress(TransportError, AckTimeoutError):
                        self._settle_denied()
                if not self.acked and not self.unknown:
                    raise
                raise self._failed(exc) from exc

    def _failed(self, error: LiftEnvelopeError, hint: str = "") -> WriteFailedError:
        text = (
            f"{self._link.source.stream}: {self.acked} rows are stored, of {self.unknown} it is "
            f"unknown{hint}: {error}"
        )
        return WriteFailedError(text, self.acked, self.unknown)

    def _refused(self, row: int, error: JetStreamError, unknown: int) -> WriteFailedError:
        text = f"{self._link.source.stream}: row {row} was not stored: {error}"
        failure = WriteFailedError(text, self.acked, unknown)
        failure.__cause__ = error
        return failure

    def _is_leaderless(self, error: LiftEnvelopeError | PubAck, portion: Portion, row: int) -> bool:
        """Return True if "no responders" means that the stream has no leader.

        The stream has recorded the same subject before, so a missing subscription is temporary.
        """
        if not isinstance(error, NoJetStreamError) or error.code != NO_RESPONDERS or not self.acked:
            return False
        return bool(portion.commands.subject_at(row - portion.first) == self._subject)

    def _check(self, portion: Portion, form: _native.put.Form) -> None:
        """Check that no row exceeds the server's maximum payload.

        Raises:
            RowTooLongError: A row is too long.
        """
        limit = self._link.max_payload
        if self._subject is None:
            self._subject = portion.commands.subject_at(0)
        row, size = portion.commands.oversize(limit, form, portion.first, 1)
        if row >= 0:
            raise RowTooLongError(
                f"row {portion.first + row} must be at most {limit} bytes, the server's limit, got {size}"
            )
