"""Chunks of a snapshot over a NATS connection: their flow control, in both directions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

from liftenvelope._deadlines import Deadline
from liftenvelope.bulk.errors import RestoreError
from liftenvelope.errors import CallTimeoutError, ServerProtocolError, TransportError, jetstream_error
from liftenvelope.jetstream.api import read_answer
from liftenvelope.jetstream.statuses import status_number

if TYPE_CHECKING:
    from liftenvelope.bulk._jetstream.frame import Frame
    from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
    from liftenvelope.bulk.access import Access

__all__ = ["CHUNK_BYTES", "ChunkSender", "received_chunks"]

#: Size of a chunk. The server's default.
CHUNK_BYTES: Final = 128 * 1024
#: Chunks of a restore to send before their answers have come. One at a time waits for each answer.
_AHEAD: Final = 8
#: Seconds to wait for the end of a restore. A server before 2.15 reads all of the data again for it.
_LONGEST_END: Final = 3_600.0
#: Longest wait in seconds between two looks at the time.
_LOOK: Final = 0.5
_ENDED: Final = 204
_NO_RESPONDERS: Final = 503


def received_chunks(link: NatsSocket, access: Access, sid: int) -> Iterator[bytes]:
    """Yield the chunks of a snapshot as they arrive, and acknowledge each once the caller takes the next one.

    The server sends up to 8 MiB ahead of the acknowledgements, and gives up 5 seconds after the last one.

    Args:
        link: Connection with the subscription that the server sends to.
        access: Connection options.
        sid: Number of the subscription.

    Raises:
        JetStreamError: The server can't read the stream, or gave the snapshot up.
        TransportError: The connection was lost, or a chunk is missing.
        ServerProtocolError: The server sent a message for another subscription.
        CallTimeoutError: No chunk came within ``timeout`` seconds.
        PermissionDeniedError: The user may not acknowledge chunks.
    """
    number = 0
    while True:
        frame = _next_frame(link, access, Deadline(access.timeout), f"chunk {number + 1} of the snapshot")
        if frame.sid != sid:  # the connection has no other: passing over them would never end
            text = f"{link.address} sent a message for subscription {frame.sid}, which does not exist"
            raise ServerProtocolError(text)
        if not frame.payload:
            status = frame.status
            if status is not None and status.code != _ENDED:
                raise jetstream_error(status.code, 0, f"the snapshot failed: {status.description}")
            return
        number += 1
        if frame.reply and (came := status_number(frame.reply.rpartition(".")[2])) != number:
            text = f"{link.address} sent chunk {came} of the snapshot after chunk {number - 1}"
            raise TransportError(f"{text}: some were lost, take the backup again")
        yield frame.payload
        if frame.reply:
            link.publish(frame.reply, b"")


class ChunkSender:
    """Sends the chunks of a restore, some ahead of their answers.

    Args:
        link: Connection that nothing else uses.
        access: Connection options.
        subject: Subject that the server has named for the chunks.
    """

    def __init__(self, link: NatsSocket, access: Access, subject: str) -> None:
        self._link = link
        self._access = access
        self._subject = subject
        self._inbox = access.new_inbox()
        self._sid = link.subscribe(f"{self._inbox}.*")
        self._sent = 0
        self._answered = 0

    def send(self, file: BinaryIO) -> Iterator[int]:
        """Send a file; yield the size of each chunk once the server has taken it.

        Raises:
            JetStreamError: The server refuses the data.
            RestoreError: The server has given the restore up.
            TransportError: The connection was lost.
            CallTimeoutError: The server did not take a chunk within ``timeout`` seconds.
            OSError: The file can't be read.
        """
        size = min(CHUNK_BYTES, self._link.max_payload)
        waiting: list[int] = []
        while chunk := file.read(size):
            self._publish(chunk)
            waiting.append(len(chunk))
            if len(waiting) == _AHEAD:
                self._await_taken()
                yield waiting.pop(0)
        for each in waiting:
            self._await_taken()
            yield each

    def end(self, longest: float = _LONGEST_END) -> Frame:
        """Tell that the data has ended; return the answer to the restore.

        Args:
            longest: Seconds to wait for the answer.

        Raises:
            JetStreamError: The restore failed.
            RestoreError: The server had given the restore up.
            TransportError: The connection was lost.
            CallTimeoutError: The server did not answer in time.
        """
        self._publish(b"")
        return self._answer(Deadline(longest), "the outcome of the restore")

    def _publish(self, chunk: bytes) -> None:
        self._sent += 1
        self._link.publish(self._subject, chunk, f"{self._inbox}.{self._sent}")

    def _await_taken(self) -> None:
        what = f"an answer to chunk {self._answered + 1}"
        self._answer(Deadline(self._access.timeout), what)
        self._answered += 1

    def _answer(self, deadline: Deadline, what: str) -> Frame:
        """Return the next answer, which is not an error."""
        while (frame := _next_frame(self._link, self._access, deadline, what)).sid != self._sid:
            pass
        status = frame.status
        if status is not None and status.code == _NO_RESPONDERS:
            text = f"{self._link.address} has given the restore up"
            raise RestoreError(f"{text}: it waits 5 s for the next chunk; restore again")
        if frame.payload:
            read_answer(frame.payload, self._subject)
        return frame


def _next_frame(link: NatsSocket, access: Access, deadline: Deadline, what: str) -> Frame:
    """Wait for the next message of a subscription.

    Raises:
        CallTimeoutError: The deadline has passed.
        TransportError: The connection was lost, or the server was silent for ``stall_timeout`` seconds: it
            did not answer a PING either.
    """
    pinged = False
    while (frame := link.next_frame()) is None:
        if deadline.is_over:
            text = f"{link.address} did not send {what} within {deadline.timeout:g} s"
            raise CallTimeoutError(f"{text}: give a longer timeout in bulk.Access if its disk is slow")
        if link.fill(min(deadline.left, _LOOK)):
            pinged = False
            continue
        silent = time.monotonic() - link.last_heard
        if silent > access.stall_timeout:
            raise TransportError(f"{link.address} was silent for {access.stall_timeout} s")
        if silent > access.stall_timeout / 2 and not pinged:
            link.send(b"PING\r\n")
            pinged = True
    return frame
