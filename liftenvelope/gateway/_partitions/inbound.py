"""Position of the last message that JetStream has received for a stream, stored or still queued.

JetStream stores messages one after the other from a queue of the stream. It does not report the length of
that queue, and a pause between two stored messages says nothing about it: a slow disk causes pauses too. So a
marker is sent through the queue. Its header expects a last sequence that no stream has, and JetStream refuses
it when its turn comes, after everything queued before. A second header makes it a trace (ADR-41), which
subscribers to the subject do not receive. NATS refuses the marker if the gateway may not publish on the
subject, as is enough for a gateway whose clients publish on NATS alone.

In a cluster, the marker's turn comes when the messages before it are proposed to the replicas. They are
stored once a majority has them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import AckTimeoutError, CallTimeoutError, JetStreamError, PermissionDeniedError

if TYPE_CHECKING:
    from liftenvelope.jetstream.context import JetStream

__all__ = ["last_received"]

#: Last sequence that a marker expects, and its further headers. Nothing listens on the subject of its trace.
_NO_SEQUENCE: Final = 2**62
_TRACE: Final = {"Nats-Trace-Only": "true", "Nats-Trace-Dest": "_lift.traces"}
#: First version of nats-server, major and minor, that keeps traces from subscribers.
_TRACES: Final = (2, 11)
#: Timeout of one request or marker, in seconds. Short, because leaders may change and both are repeated.
_ONE_REQUEST: Final = 2.0
#: Status of the refusal if the queue is full, and the pause before the next marker, in seconds.
_QUEUE_FULL: Final = 429
_PAUSE: Final = 0.05


async def last_received(js: JetStream, stream: str) -> int:
    """Wait until JetStream has taken everything from the queue of a stream; return the last sequence.

    Repeats requests without an answer: the caller limits the wait. Messages in the queue are not waited for
    if the server is older than 2.11, or if the user may not publish on the subject.

    Args:
        js: JetStream. The marker is one of its messages in flight.
        stream: Name of the JetStream stream.

    Raises:
        JetStreamError: The stream does not exist, or JetStream refused the request.
        TransportError: The connection was closed.
    """
    version = js.api.nc.connected_server_version
    traces = (version.major, version.minor) >= _TRACES
    while True:
        try:
            info = await js.api.request(f"STREAM.INFO.{stream}", timeout=_ONE_REQUEST)
            # One queue serves all subjects. A stream that copies another one has none.
            for subject in info["config"].get("subjects", [])[:1] if traces else []:
                await _pass_queue(js, subject)
                info = await js.api.request(f"STREAM.INFO.{stream}", timeout=_ONE_REQUEST)
            return int(info["state"]["last_seq"])
        except (CallTimeoutError, AckTimeoutError):
            continue


async def _pass_queue(js: JetStream, subject: str) -> None:
    """Send a marker through the queue of the stream that records a subject; wait until its turn comes."""
    concrete = subject.replace("*", "_").replace(">", "_")
    while True:
        try:
            marker = await js.publish_async(
                concrete,
                headers=_TRACE,
                expected_last_sequence=_NO_SEQUENCE,
                timeout=_ONE_REQUEST,
                retry_attempts=0,
            )
            await marker
        except PermissionDeniedError:
            return  # NATS takes no marker
        except JetStreamError as exc:
            if exc.code != _QUEUE_FULL:
                return  # its turn has come, or the stream does not record the subject any more
        await asyncio.sleep(_PAUSE)
