"""Metrics of gateways in a sample, read from their ``/metrics`` by HTTP."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import aiohttp

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import LiftEnvelopeError, TransportError, UsageError
from liftenvelope.monitor._collector import Sampler
from liftenvelope.monitor._parts import each, fault_of, steady_clock
from liftenvelope.monitor._snapshots import GatewayFigures, GatewaySample, SampleFault, Snapshot

__all__ = ["METRICS", "GatewayMetrics", "figures_of", "metrics_url", "with_gateways"]

#: Beginning of the names of a gateway's metrics.
_PREFIX: Final = "liftenvelope_gateway_"
#: Names of the metrics that are read, without the prefix.
METRICS: Final = frozenset({
    "build_info", "ready", "unmet_condition", "partitions_led", "partitions_bound", "connections",
    "open_calls", "pending_acks", "raw_ack_lag_messages", "open_reads", "read_buffered_bytes",
    "publishes_total", "publish_acks_total", "raw_acks_total",
})  # fmt: skip
#: A line of Prometheus's text format with the name, the labels and the value.
_LINE: Final = re.compile(rf"{_PREFIX}(\w+)(?:\{{(.*)\}})? (\S+)")
#: A label. Possessive, and a name begins where a word does: otherwise the time is quadratic in the length of
#: a line, and 16 MiB of lines of 1,000 characters held the event loop for 73 s.
_LABEL: Final = re.compile(r'\b(\w++)="((?:[^"\\]|\\.)*+)"')
#: Characters of a line.
_LONGEST: Final = 1_024
#: Values are counts below this, so their sums are exact and finite.
_HIGHEST: Final = 2.0**53
#: Seconds for an answer, bytes of it, and requests at once.
_TIMEOUT: Final = 5.0
_LARGEST: Final = 16 * 2**20
_AT_ONCE: Final = 8
#: Seconds between two reads: rendering costs a gateway with many streams some milliseconds.
_EVERY: Final = 5.0

#: Values of each metric of one gateway, with their labels.
_Values: TypeAlias = "Mapping[str, list[tuple[dict[str, str], float]]]"


def metrics_url(text: str) -> str:
    """Return the URL of a gateway's metrics, checked. Without a path it is ``/metrics``.

    Raises:
        UsageError: The text is no URL by HTTP.

    Example:
        >>> metrics_url("http://127.0.0.1:9293")
        'http://127.0.0.1:9293/metrics'
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        example = "http://127.0.0.1:9293/metrics"
        raise UsageError(f"gateway metrics must be a URL such as {example}, got {without_secrets(text)!r}")
    return text if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


def figures_of(lines: Iterable[str], at: float) -> dict[str, GatewayFigures]:
    """Return the metrics of the gateways in an answer of ``/metrics``, by the gateways' ids. Sans-io.

    Several workers of one program answer together.

    Args:
        lines: The answer in Prometheus's text format.
        at: Time of the answer, in seconds since 1970.

    Example:
        >>> lines = ['liftenvelope_gateway_build_info{id="one"} 1.0', "liftenvelope_gateway_open_reads 3.0"]
        >>> figures_of(lines, 1.0)["one"].reads
        3
    """
    workers: dict[str, dict[str, list[tuple[dict[str, str], float]]]] = defaultdict(lambda: defaultdict(list))
    for name, labels, value in _values(lines):
        workers[labels.get("worker", "")][name].append((labels, value))
    return {
        labels["id"]: _figures(values, at)
        for values in workers.values()
        for labels, _ in values.get("build_info", ())
        if "id" in labels
    }


def _values(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in lines:
        found = _LINE.match(line[:_LONGEST])
        if found is not None and found[1] in METRICS:
            try:
                value = float(found[3])
            except ValueError:
                continue  # not a metric of ours
            if 0 <= value < _HIGHEST:
                yield found[1], dict(_LABEL.findall(found[2] or "")), value


def _figures(values: _Values, at: float) -> GatewayFigures:
    def total(name: str) -> int:
        return int(sum(value for _, value in values.get(name, ())))

    return GatewayFigures(
        at=at,
        ready=total("ready") > 0,
        unmet=[labels.get("condition", "") for labels, value in values.get("unmet_condition", ()) if value],
        led=total("partitions_led"),
        bound=total("partitions_bound"),
        connections=total("connections"),
        calls=total("open_calls"),
        pending_acks=total("pending_acks"),
        raw_ack_lag=total("raw_ack_lag_messages") if "raw_ack_lag_messages" in values else None,
        reads=total("open_reads"),
        buffered_bytes=total("read_buffered_bytes"),
        publishes=total("publishes_total"),
        acks=total("publish_acks_total") + total("raw_acks_total"),
    )


class GatewayMetrics:
    """Reads the metrics of gateways, at most every 5 seconds.

    Args:
        urls: URLs of the metrics.
        session: Makes the requests.
        every: Seconds between two reads.
    """

    def __init__(self, urls: Sequence[str], session: aiohttp.ClientSession, *, every: float = _EVERY) -> None:
        self._urls = [metrics_url(url) for url in urls]
        self._session = session
        self._every = every
        self._clock = steady_clock()
        self._due = 0.0
        self._newest: dict[str, GatewayFigures] = {}
        self._faults: list[SampleFault] = []

    async def read(self) -> tuple[dict[str, GatewayFigures], list[SampleFault]]:
        """Return the newest metrics by the gateways' ids, and what could not be read."""
        now = self._clock()
        if now >= self._due:
            answers = await each(self._urls, self._ask, _AT_ONCE)
            self._due = now + self._every
            self._newest, self._faults = {}, []
            for answer in answers:
                if isinstance(answer, LiftEnvelopeError):
                    self._faults.append(fault_of("gateways", answer))
                else:
                    self._newest |= answer
        return self._newest, self._faults

    async def _ask(self, url: str) -> dict[str, GatewayFigures]:
        try:
            async with asyncio.timeout(_TIMEOUT), self._session.get(url, allow_redirects=False) as answer:
                answer.raise_for_status()
                data = bytearray()
                async for piece in answer.content.iter_any():
                    data += piece
                    if len(data) > _LARGEST:
                        raise TransportError(f"the metrics of {url} are larger than {_LARGEST} bytes")
        except TimeoutError as exc:
            raise TransportError(f"{url} did not answer within {_TIMEOUT:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise TransportError(f"the metrics of {url} could not be read: {exc}") from exc
        found = figures_of(data.decode("utf-8", "replace").splitlines(), self._clock())
        if not found:
            raise TransportError(f"{url} has no metrics of a gateway")
        return found


class _GatewaySampler:
    """Adds the metrics of gateways to the samples of another sampler."""

    def __init__(self, sampler: Sampler, metrics: GatewayMetrics) -> None:
        self._sampler = sampler
        self._metrics = metrics

    async def sample(self, focus: Sequence[str] = ()) -> Snapshot:
        """Take a sample, and read the metrics meanwhile."""
        reading = asyncio.create_task(self._metrics.read(), name="read the metrics of gateways")
        try:
            snapshot = await self._sampler.sample(focus)
            figures, faults = await reading
        finally:  # a failed sample may close the session that the read uses
            reading.cancel()
            await asyncio.wait([reading])
        gateways = dict(snapshot.gateways)
        for name, found in figures.items():
            gateways[name] = replace(gateways.get(name, GatewaySample(id=name)), figures=found)
        return replace(snapshot, gateways=gateways, faults=[*snapshot.faults, *faults])


@asynccontextmanager
async def with_gateways(
    sampler: Sampler, urls: Sequence[str], *, every: float = _EVERY
) -> AsyncIterator[Sampler]:
    """Yield a sampler that adds the metrics of gateways to another sampler's samples.

    Args:
        sampler: Takes the other parts of a sample.
        urls: URLs of the gateways' metrics, such as ``http://127.0.0.1:9293/metrics``.
        every: Seconds between two reads of the metrics.

    Raises:
        UsageError: A URL is invalid.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT)) as session:
        yield _GatewaySampler(sampler, GatewayMetrics(urls, session, every=every))
