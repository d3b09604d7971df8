"""What all ways to publish rows to JetStream have: a connection that is made again, and an inbox."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.client.retries import pause_before
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNotFoundError,
    TransportError,
    UsageError,
    WrongStreamError,
)
from liftenvelope.jetstream._publish_frames import PubAck, read_ack

if TYPE_CHECKING:
    from liftenvelope import _native
    from liftenvelope.bulk._jetstream import JetStreamSource
    from liftenvelope.bulk._nats_socket import Frame, NatsSocket
    from liftenvelope.bulk._portions import Portion
    from liftenvelope.bulk.outgoing import Written

__all__ = ["MOST_BYTES", "NO_RESPONDERS", "PIECE", "Publisher", "WriteLink"]

#: Sequences count in 64 signed bits here; no stream reaches more.
_SEQUENCES: Final = 2**63
#: How many bytes are sent at once.
PIECE: Final = 128 * 1024
#: How many bytes may be without their ack: the server holds 128 MiB of a stream's messages, and drops others.
MOST_BYTES: Final = 16 * 1024 * 1024
#: For how long to wait for an answer before something is done about that, in seconds.
_TURN: Final = 0.5
NO_RESPONDERS: Final = 503


class WriteLink:
    """A connection with an inbox that acks come to.

    Args:
        source: The stream.

    Attributes:
        source: The stream.
        inbox: What the subjects of acks begin with, the last dot included.
        sid: The number of the subscription that they come by.
        config: The stream's, as the server has it.
        version: The server's.
        max_payload: The longest message that the server takes.
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
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    @property
    def socket(self) -> NatsSocket:
        """The connection."""
        assert self._socket is not None
        return self._socket

    def connect(self) -> None:
        """Connect, and make sure that there is such a stream.

        Raises:
            StreamNotFoundError: There is none.
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

    def wait(self, heard: Callable[[], bool], idle: Callable[[], None] | None = None) -> None:
        """Take what comes until that says that it is enough.

        Args:
            heard: Takes what is in the socket's buffer; returns whether that is enough.
            idle: Called when nothing has come for half a second.

        Raises:
            AckTimeoutError: Nothing has come for the ``timeout`` of the access.
        """
        since = time.monotonic()
        while not heard():
            if self.socket.fill(_TURN):
                since = time.monotonic()
                continue
            silence = time.monotonic() - since
            if silence >= self.source.access.timeout:
                raise AckTimeoutError(f"no ack came for {silence:.1f} s", "")
            if idle is not None:
                idle()

    def look(self, heard: Callable[[], bool]) -> None:
        """Take what has come by now."""
        while self.socket.fill(0):
            heard()

    def read(self, frame: Frame, row: int) -> PubAck | JetStreamError:
        """What an answer says: an ack of our stream, or why there is none.

        Args:
            frame: The answer.
            row: The number of the row that it is for.
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
    """The stream that an error is of."""
    try:
        return json.loads(answer).get("stream") or None
    except (ValueError, AttributeError, RecursionError):
        return None


class Publisher(ABC):
    """One way to publish rows.

    Args:
        link: What they go over.
    """

    def __init__(self, link: WriteLink) -> None:
        self._link = link
        self._subject: bytes | None = None

    @property
    @abstractmethod
    def acked(self) -> int:
        """How many rows are stored for sure."""

    @property
    @abstractmethod
    def unknown(self) -> int:
        """How many more may be."""

    @abstractmethod
    def add(self, portion: Portion) -> None:
        """Publish rows; some of them may be without their ack when it returns.

        Raises:
            UsageError: A row is too long; nothing of the portion was sent.
            WriteFailedError: A row was refused, or its outcome is unknown.
        """

    @abstractmethod
    def finish(self) -> Written:
        """Wait for all acks.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """

    @abstractmethod
    def _lost(self) -> bool:
        """Prepare for another connection; return whether rows can be sent over that."""

    @abstractmethod
    def _connected(self) -> None:
        """Go on over another connection."""

    def _guarded(self, step: Callable[[], object]) -> None:
        """Do something over the connection; if it fails, over another one, if that is sound."""
        failing_since, attempt = 0.0, 0
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
                failing_since = now if attempt == 0 or self.acked > acked else failing_since
                late = now - failing_since >= self._link.source.access.reconnect_wait
                if not self._lost() or late:
                    raise self._failed(exc) from exc
                attempt += 1
                time.sleep(pause_before(attempt))
            except JetStreamError as exc:  # there is no such stream any more
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
        """Whether nobody listens because the stream has no leader: it did record that subject before."""
        if not isinstance(error, NoJetStreamError) or error.code != NO_RESPONDERS or not self.acked:
            return False
        return bool(portion.commands.subject_at(row - portion.first) == self._subject)

    def _check(self, portion: Portion, form: _native.put.Form) -> None:
        """Make sure that all rows can be sent.

        Raises:
            UsageError: One is too long.
        """
        limit = self._link.max_payload
        if self._subject is None:
            self._subject = portion.commands.subject_at(0)
        row, size = portion.commands.oversize(limit, form, portion.first, 1)
        if row >= 0:
            raise UsageError(f"row {portion.first + row} has {size} bytes; the server takes {limit}")
