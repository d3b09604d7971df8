"""Position of the last message that JetStream has received for a stream, stored or still queued.

JetStream stores messages one after the other from a queue of the stream. It does not report the length of
that queue, and a pause between two stored messages says nothing about it: a slow disk causes pauses too. So a
marker is sent through the queue. Its header expects a last sequence that no stream has, and JetStream refuses
it when its turn comes, after everything queued before. A second header makes it a trace (ADR-41), which
subscribers to the subject do not receive.

In a cluster, the marker's turn comes when the messages before it are proposed to the replicas. They are
stored once a majority has them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import CallTimeoutError, JetStreamError, NoJetStreamError
from liftenvelope.jetstream.api import read_answer

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["last_received"]

#: Headers of a marker. Nothing listens on the subject of its trace.
_MARKER: Final = {
    "Nats-Expected-Last-Sequence": str(2**62),
    "Nats-Trace-Only": "true",
    "Nats-Trace-Dest": "_lift.traces",
}
#: First version of nats-server, major and minor, that keeps traces from subscribers.
_TRACES: Final = (2, 11)
#: Status of the refusal if the queue is full, and the pause before the next marker, in seconds.
_QUEUE_FULL: Final = 429
_PAUSE: Final = 0.05


async def last_received(api: Api, stream: str) -> int:
    """Wait until JetStream has taken everything from the queue of a stream; return the last sequence.

    Repeats requests without an answer: the caller limits the wait. With a server older than 2.11, messages in
    the queue are not waited for.

    Args:
        api: JetStream's API.
        stream: Name of the JetStream stream.

    Raises:
        JetStreamError: The stream does not exist, or JetStream refused the request.
        TransportError: The connection was closed.
    """
    version = api.nc.connected_server_version
    traces = (version.major, version.minor) >= _TRACES
    while True:
        try:
            info = await api.request(f"STREAM.INFO.{stream}")
            # One queue serves all subjects. A stream that copies another one has none.
            for subject in info["config"].get("subjects", [])[:1] if traces else []:
                await _pass_queue(api, subject)
                info = await api.request(f"STREAM.INFO.{stream}")
            return int(info["state"]["last_seq"])
        except CallTimeoutError:
            continue


async def _pass_queue(api: Api, subject: str) -> None:
    """Send a marker through the queue of the stream that records a subject; wait until its turn comes."""
    concrete = subject.replace("*", "_").replace(">", "_")
    while True:
        try:
            msg = await api.ask(concrete, b"", headers=_MARKER)
            read_answer(msg.data, concrete)
        except NoJetStreamError:
            return  # the stream does not record the subject any more
        except JetStreamError as exc:
            if exc.code != _QUEUE_FULL:
                return
        await asyncio.sleep(_PAUSE)
