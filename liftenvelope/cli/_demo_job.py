"""Demo job on real servers: publishes envelopes on NATS and accounts for every ack.

Needs ``pip install 'liftenvelope[cli]'``. Run it with ``python -m liftenvelope demo``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from timeit import Timer
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.nats import AckInbox, BatchSummary, EnvelopePublisher

# After liftenvelope.nats, which imports it without aiohttp.
# isort: split
import nats
import nats.errors

from liftenvelope._native.values import ACK_FIELDS, MESSAGE_FIELDS
from liftenvelope._secrets import without_secrets
from liftenvelope.envelope import Ack, marshal_ack, new_message, unmarshal_ack, unmarshal_message
from liftenvelope.errors import AckTimeoutError, LiftEnvelopeError, TransportError, UsageError
from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.program_client import new_client
from liftenvelope.rpc.address import parse_address

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.testing import GatewayCluster, LiftbridgeAdmin, LiftbridgeCluster

__all__ = ["BROKERS", "CodecTimes", "DemoReport", "Job", "run_demo", "time_codec"]

#: Kinds of brokers that the demo can start.
BROKERS: Final = ("gateway", "liftbridge")
_BATCH: Final = 5_000
#: Smallest and largest values of a job. No NATS server takes a message of more than 64 MiB.
_BOUNDS: Final = {"messages": (1, 1_000_000_000), "size": (16, 64 * 1024 * 1024), "window": (1, 1_000_000)}
#: Seconds to wait for acks, and to delete the stream after a failure.
_ACK_TIMEOUT: Final = 30.0
_PATIENCE: Final = 5.0
#: Headers that the server adds to every stored message.
_SERVER_HEADERS: Final = ("subject", "reply")


@dataclass(frozen=True)
class Job:
    """Parameters of the demo.

    Attributes:
        messages: Number of envelopes to publish.
        size: Size of each value, in bytes.
        window: Maximum number of messages that wait for acks at a time.
        nats_url: URL of a running NATS server; None starts one.
        liftbridge: ``host:port`` of a running Liftbridge, or gateway, on that NATS server; None starts one.
        broker: Broker to start: ``gateway``, the default, or ``liftbridge``, the real server.
    """

    messages: int = 100_000
    size: int = 256
    window: int = 1_000
    nats_url: str | None = field(default=None, repr=False)
    liftbridge: str | None = None
    broker: str = "gateway"

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"{name} must be from {least:,} to {most:,}, got {getattr(self, name)}")
        if self.broker not in BROKERS:
            raise UsageError(f"broker must be one of {', '.join(BROKERS)}, got {self.broker!r}")
        if (self.nats_url is None) != (self.liftbridge is None):
            raise UsageError(
                "--url and --liftbridge go together: a Liftbridge server and the NATS server it uses"
            )
        if self.liftbridge is not None:
            parse_address(self.liftbridge)


@dataclass(frozen=True)
class CodecTimes:
    """Nanoseconds per message of an operation, for this codec and for protobuf."""

    operation: str
    ours_ns: float
    protobuf_ns: float

    @property
    def ratio(self) -> float:
        """Speed-up over protobuf."""
        return self.protobuf_ns / self.ours_ns


@dataclass(frozen=True)
class DemoReport:
    """Results of the demo.

    Attributes:
        published: Number of envelopes published.
        seconds: Seconds from the first publish to the last ack.
        lost: Number of messages without an ack, or with an error ack.
        contiguous: True if the offsets have no gaps and no repetitions.
        read_back: True if a message read from the stream equals the published one.
        p50, p99, slowest: Ack latencies in seconds.
        codec: Times of the codec, compared with protobuf.
    """

    published: int
    seconds: float
    lost: int
    contiguous: bool
    read_back: bool
    p50: float
    p99: float
    slowest: float
    codec: tuple[CodecTimes, ...]

    @property
    def ok(self) -> bool:
        """True if no message is lost, the offsets are contiguous, and the message read back is correct."""
        return not self.lost and self.contiguous and self.read_back


async def run_demo(
    job: Job,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    on_ack: Callable[[int], None] = lambda _: None,
) -> DemoReport:
    """Run the demo.

    Args:
        job: Parameters of the demo.
        on_stage: Called with a short description when a stage begins.
        on_ack: Called with the number of messages acked since the last call.

    Raises:
        TransportError: A server can't be reached.
        LiftEnvelopeError: A server failed or could not be started.
    """
    async with _servers(job, on_stage) as (nc, admin):
        stream = f"liftenvelope-demo-{secrets.token_hex(4)}"
        on_stage(f"creating the stream {stream}")
        async with _created(admin, stream):
            await _check_pair(nc, stream, job)
            on_stage(f"publishing {job.messages:,} envelopes of {job.size} bytes")
            started = time.perf_counter()
            summaries = await _publish(nc, stream, job, on_ack)
            seconds = time.perf_counter() - started
            on_stage("reading one back")
            read_back = await asyncio.to_thread(_read_back, admin, stream, job, summaries)
        on_stage("timing the codec")
        return _report(summaries, seconds, read_back)


@contextlib.asynccontextmanager
async def _created(admin: LiftbridgeAdmin, stream: str) -> AsyncIterator[None]:
    """Create a stream, and delete it at the end of the block."""
    await asyncio.to_thread(admin.create_stream, stream)
    try:
        yield
    except BaseException:
        # The servers may be gone. The first error is the one to report.
        with contextlib.suppress(LiftEnvelopeError):
            await asyncio.to_thread(admin.delete_stream, stream, timeout=_PATIENCE)
        raise
    await asyncio.to_thread(admin.delete_stream, stream)


@contextlib.asynccontextmanager
async def _servers(
    job: Job, on_stage: Callable[[str], None]
) -> AsyncIterator[tuple[Client, LiftbridgeAdmin]]:
    from liftenvelope.testing import LiftbridgeAdmin

    async with contextlib.AsyncExitStack() as stack:
        if job.nats_url is None or job.liftbridge is None:
            cluster = _own_servers(job, on_stage)
            await stack.enter_async_context(cluster)
            url, admin = cluster.nats_url, LiftbridgeAdmin(cluster.addresses)
        else:
            url, admin = job.nats_url, LiftbridgeAdmin([job.liftbridge])
            await asyncio.to_thread(_check_liftbridge, job.liftbridge)
        nc = await _connect(url)
        stack.push_async_callback(close_connection, nc)
        yield nc, admin


def _own_servers(job: Job, on_stage: Callable[[str], None]) -> LiftbridgeCluster | GatewayCluster:
    from liftenvelope.testing import run_gateway, run_liftbridge

    if job.broker == "gateway":
        on_stage("starting nats-server and the gateway")
        return run_gateway()
    on_stage("starting nats-server and Liftbridge (the first time, Liftbridge is built: about a minute)")
    return run_liftbridge()


def _check_liftbridge(address: str) -> None:
    """Fail at once if no server listens: the calls that follow would retry for half a minute."""
    from liftenvelope.rpc.blocking import BlockingChannel

    try:
        with BlockingChannel(address, connect_timeout=5) as channel:
            channel.connect()
    except TransportError as exc:
        raise TransportError(f"there is no Liftbridge server at {address}: {exc}") from exc


async def _check_pair(nc: Client, stream: str, job: Job) -> None:
    """Fail before the load if the two given servers are not connected to each other."""
    if job.nats_url is None:
        return
    try:
        async with AckInbox(nc, timeout=5) as inbox:
            await inbox.publish(stream, b"first")
    except AckTimeoutError as exc:
        raise TransportError(
            f"no ack from Liftbridge: does {job.liftbridge} use the NATS server at "
            f"{without_secrets(job.nats_url)}?"
        ) from exc


async def _connect(url: str) -> Client:
    try:
        nc = new_client([url])
        await nc.connect(url, connect_timeout=5, max_reconnect_attempts=1, error_cb=_quiet)
    except (OSError, nats.errors.Error) as exc:
        raise TransportError(without_secrets(f"there is no NATS server at {url}: {exc!r}")) from exc
    return nc


async def _quiet(_: Exception) -> None:
    """Ignore the error: ``_connect`` reports it by an exception."""


def _value(job: Job, index: int) -> bytes:
    return b"%015d " % index + b"x" * (job.size - 16)


async def _publish(nc: Client, stream: str, job: Job, on_ack: Callable[[int], None]) -> list[BatchSummary]:
    summaries, waiting = [], None
    async with AckInbox(nc, max_outstanding=job.window) as inbox:
        publisher = EnvelopePublisher(nc, stream, inbox=inbox, timeout=_ACK_TIMEOUT)
        for start in range(0, job.messages, _BATCH):
            indexes = range(start, min(start + _BATCH, job.messages))
            acks = await publisher.publish_batch(
                [_value(job, i) for i in indexes],
                keys=[b"key-%d" % (i % 100) for i in indexes],
                headers=[{"n": b"%d" % i} for i in indexes],
            )
            if waiting is not None:
                summaries.append(_with_acks(await waiting))
                on_ack(len(summaries[-1]))
            waiting = acks
        if waiting is not None:
            summaries.append(_with_acks(await waiting))
            on_ack(len(summaries[-1]))
    return summaries


def _with_acks(summary: BatchSummary) -> BatchSummary:
    """Return a summary; fail if no message of it has an ack, because every later batch would wait as long."""
    if any(offset >= 0 for offset in summary.offsets):
        return summary
    text = f"no ack for {len(summary):,} messages within {_ACK_TIMEOUT:.0f} s: look at the log of the broker"
    raise TransportError(text)


def _read_back(admin: LiftbridgeAdmin, stream: str, job: Job, summaries: list[BatchSummary]) -> bool:
    offset = next((offset for summary in summaries for offset in summary.offsets if offset >= 0), None)
    return offset is not None and _is_same(admin.read(stream, start=offset, count=1)[0], job, summaries)


def _is_same(stored: Any, job: Job, summaries: list[BatchSummary]) -> bool:
    position = 0
    for summary in summaries:
        if stored.offset in summary.offsets:
            index = position + summary.offsets.index(stored.offset)
            headers = {name: value for name, value in stored.headers.items() if name not in _SERVER_HEADERS}
            return bool(
                stored.value == _value(job, index)
                and stored.key == b"key-%d" % (index % 100)
                and headers == {"n": b"%d" % index}
            )
        position += len(summary)
    return False


def _report(summaries: list[BatchSummary], seconds: float, read_back: bool) -> DemoReport:
    offsets = sorted(offset for summary in summaries for offset in summary.offsets if offset >= 0)
    latencies = sorted(latency for summary in summaries for latency in summary.latencies if latency >= 0) or [
        0.0
    ]
    published = sum(map(len, summaries))
    return DemoReport(
        published=published,
        seconds=seconds,
        lost=published - len(offsets),
        contiguous=bool(offsets) and offsets == list(range(offsets[0], offsets[0] + len(offsets))),
        read_back=read_back,
        p50=latencies[len(latencies) // 2],
        p99=latencies[int(len(latencies) * 0.99)],
        slowest=latencies[-1],
        codec=tuple(time_codec()),
    )


def time_codec() -> Iterator[CodecTimes]:
    """Time encoding and decoding a message, and decoding an ack, compared with protobuf.

    Each time is the best of 7 rounds, in nanoseconds per message, with all fields read after decoding.
    """
    from liftenvelope._pb import api_pb2 as pb

    value, head, inbox = b"x" * 100, bytes.fromhex("b90e43b400080000"), "_INBOX.2zTH4SaNZeYPjF9tMYnmJK"
    envelope = new_message(value, key=b"key-1", ack_inbox=inbox, correlation_id="P-zfbt00")
    ack = marshal_ack(
        Ack(stream="sensors", partition_subject="s.t", msg_subject="s.t", offset=10**6, ack_inbox=inbox,
            correlation_id="P-zfbt00", reception_timestamp_ns=10**18, commit_timestamp_ns=10**18)
    )  # fmt: skip
    pb_message, pb_ack = pb.Message.DESCRIPTOR.fields_by_name, pb.Ack.DESCRIPTOR.fields_by_name
    names = {"pb": pb, "value": value, "head": head, "inbox": inbox, "envelope": envelope, "ack": ack}
    names |= {f.__name__: f for f in (new_message, unmarshal_message, unmarshal_ack)}
    ours = "new_message(value, key=b'key-1', ack_inbox=inbox, correlation_id='P-zfbt00')"
    theirs = "pb.Message(offset=-1, key=b'key-1', value=value, ackInbox=inbox, correlationId='P-zfbt00')"
    yield CodecTimes("encode a message", _ns(ours, names), _ns(f"head + {theirs}.SerializeToString()", names))
    yield CodecTimes(
        "decode a message",
        _ns("m = unmarshal_message(envelope); " + _reads(MESSAGE_FIELDS), names),
        _ns("m = pb.Message.FromString(envelope[8:]); " + _reads(pb_message), names),
    )
    yield CodecTimes(
        "decode an ack",
        _ns("m = unmarshal_ack(ack); " + _reads(ACK_FIELDS), names),
        _ns("m = pb.Ack.FromString(ack[8:]); " + _reads(pb_ack), names),
    )


def _reads(fields: Any) -> str:
    return "; ".join(f"m.{name}" for name in fields)


def _ns(statement: str, names: dict[str, Any]) -> float:
    count = 20_000
    return min(Timer(statement, globals=names).repeat(repeat=7, number=count)) / count * 1e9
