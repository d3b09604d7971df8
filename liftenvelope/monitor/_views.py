"""State of a page as JSON, and what has changed since it was last sent. Sans-io.

Text of servers and publishers goes out as JSON strings; the page puts them into text nodes alone.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Sequence
from typing import Final, TypeAlias

from liftenvelope.monitor._alerts import alerts
from liftenvelope.monitor._generations import Generation
from liftenvelope.monitor._history import History, SeriesKey
from liftenvelope.monitor._reading import MessagePage
from liftenvelope.monitor._snapshots import ConsumerSample, GatewaySample, GroupSample, Snapshot, StreamSample
from liftenvelope.monitor.messages import Received

__all__ = ["Json", "View", "messages_json"]

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | dict[str, "Json"] | None
#: Alerts, rows and plotted lines of a page.
_MAX_ALERTS: Final = 200
_MAX_LINES: Final = 16
#: Partitions of a gateway's page.
_MAX_LED: Final = 500
#: Bytes of a payload, a key and a header that a page gets, and headers.
_PAYLOAD: Final = 4 * 1024
_KEY: Final = 256
_HEADER: Final = 512
_HEADERS: Final = 32


class View:
    """One page of one reader.

    A reader that is slow gets the newest state when it is ready: nothing is queued.

    Args:
        page: ``streams``, ``readers``, ``stream``, ``consumer``, ``group``, ``gateways`` or ``gateway``.
        names: Names of what the page shows.
    """

    def __init__(self, page: str, names: Sequence[str]) -> None:
        self._page = page
        self._names = tuple(names)
        self._sent: dict[str, Json] = {}
        self._since: dict[SeriesKey, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what the page shows."""
        return self._names

    def update(self, history: History) -> dict[str, Json]:
        """Return what to send: the newest state, with rows and points that were not sent yet."""
        snapshot = history.latest
        if snapshot is None:
            return {"head": None}
        found = alerts(snapshot)
        out: dict[str, Json] = {
            "head": _head(snapshot, history),
            "alerts": [[one.severity, one.kind, one.name, one.text] for one in found[:_MAX_ALERTS]],
            "more_alerts": max(len(found) - _MAX_ALERTS, 0),
        }
        parts = {
            "streams": self._streams,
            "readers": self._readers,
            "stream": self._stream,
            "consumer": self._consumer,
            "group": self._group,
            "gateways": self._gateways,
            "gateway": self._gateway,
        }
        return out | parts[self._page](snapshot, history)

    def _streams(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        rows = {name: _stream_row(one, history) for name, one in snapshot.streams.items()}
        changes = self._changes(rows)
        return {"rows": changes, "series": [self._rates(history, "total")]}

    def _changes(self, rows: dict[str, Json]) -> Json:
        """Return the rows that differ from those sent; null for one that is gone."""
        changed = {name: row for name, row in rows.items() if self._sent.get(name) != row}
        gone: dict[str, Json] = dict.fromkeys(self._sent.keys() - rows.keys())
        self._sent = rows
        return {**changed, **gone}

    def _readers(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        del history
        consumers = [_consumer_json(one) for one in snapshot.consumers.values()]
        groups = [
            [one.name, one.state, len(one.members), len(one.partitions), one.lag]
            for one in snapshot.groups.values()
        ]
        return {"consumers": consumers, "groups": groups}

    def _stream(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        (name,) = self._names
        stream = snapshot.streams.get(name)
        if stream is None:
            return {"gone": True}
        consumers = [one for one in snapshot.consumers.values() if one.stream == name]
        groups = [one for one in snapshot.groups.values() if any(row.topic == name for row in one.partitions)]
        rates = [self._rates(history, "stream", name)]
        # Lines of the first partitions alone would look like the whole rate of the stream.
        if 1 < len(stream.partitions) <= _MAX_LINES:
            numbers = [part.number for part in stream.partitions]
            rates = [self._rates(history, "partition", name, number) for number in numbers]
        lags = [self._points(history, "consumer", name, one.name) for one in consumers[:_MAX_LINES]]
        lags += [self._points(history, "group", one.name) for one in groups[: _MAX_LINES - len(lags)]]
        return {
            "stream": {
                "subjects": list(stream.subjects),
                "messages": stream.messages,
                "bytes": stream.bytes,
                "end": stream.end,
                "newest": stream.newest,
                "rate": history.rate("stream", name),
                "partitions": _partitions(stream, history),
            },
            "consumers": [_consumer_json(one) for one in consumers],
            "groups": [[one.name, one.state, len(one.members), one.lag] for one in groups],
            "series": [*rates, *lags],
        }

    def _consumer(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        stream, name = self._names
        one = snapshot.consumers.get((stream, name))
        if one is None:
            return {"gone": True}
        return {
            "consumer": _consumer_json(one),
            "series": [self._points(history, "consumer", stream, name)],
        }

    def _group(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        (name,) = self._names
        group = snapshot.groups.get(name)
        if group is None:
            return {"gone": True}
        rows = [row for row in group.partitions if row.lag is not None][:_MAX_LINES]
        lines = [self._points(history, "member", name, row.topic, row.partition) for row in rows]
        return {
            "group": _group_json(group),
            "generations": [_generation_json(one) for one in history.generations.of(name)],
            "series": [self._points(history, "group", name), *lines],
        }

    def _gateways(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        gateways = snapshot.gateways.values()
        plotted = [one.id for one in gateways if one.figures is not None][:_MAX_LINES]
        return {
            "gateways": [_gateway_json(one, history) for one in gateways],
            "series": [self._points(history, "gateway", name, "pending_acks") for name in plotted],
        }

    def _gateway(self, snapshot: Snapshot, history: History) -> dict[str, Json]:
        (name,) = self._names
        gateway = snapshot.gateways.get(name)
        if gateway is None:
            return {"gone": True}
        led = [
            [stream.name, part.number, part.end, part.in_sync, part.replicas]
            for stream in snapshot.streams.values()
            for part in stream.partitions
            if part.leader == name
        ]
        return {
            "gateway": _gateway_json(gateway, history),
            "led": led[:_MAX_LED],
            "more_led": max(len(led) - _MAX_LED, 0),
            "series": [
                self._rates(history, "gateway", name, "publishes"),
                self._rates(history, "gateway", name, "acks"),
                self._points(history, "gateway", name, "pending_acks"),
                self._points(history, "gateway", name, "reads"),
            ],
        }

    # Series: only the points that were not sent yet.

    def _points(self, history: History, *key: str | int) -> Json:
        points = history.series(*key).points(self._since.get(key, 0.0))
        return self._line(key, points)

    def _rates(self, history: History, *key: str | int) -> Json:
        points = list(history.series(*key).rates(self._since.get(key, 0.0)))
        return self._line(key, points)

    def _line(self, key: SeriesKey, points: Sequence[tuple[float, float]]) -> Json:
        if points:
            self._since[key] = points[-1][0]
        return {
            "key": list(key),
            "times": [round(at, 3) for at, _ in points],
            "values": [round(value, 2) for _, value in points],
        }


def _head(snapshot: Snapshot, history: History) -> Json:
    storage = snapshot.storage
    sizes = [one.bytes for one in snapshot.streams.values() if one.bytes is not None]
    messages = [one.messages for one in snapshot.streams.values() if one.messages is not None]
    lags = [one.lag for one in snapshot.consumers.values()]
    lags += [one.lag for one in snapshot.groups.values() if one.lag is not None]
    return {
        "at": snapshot.at,
        "kind": snapshot.kind,
        "took": round(snapshot.took, 3),
        "rate": history.rate("total"),
        "streams": len(snapshot.streams),
        "consumers": len(snapshot.consumers),
        "groups": len(snapshot.groups),
        "gateways": len(snapshot.gateways),
        "messages": sum(messages) if messages else None,
        "bytes": sum(sizes) if sizes else None,
        "max_bytes": None if storage is None else storage.max_disk,
        "lag": sum(lags) if lags else None,
        "brokers": [[address, status] for address, status in snapshot.brokers.items()],
    }


def _stream_row(one: StreamSample, history: History) -> Json:
    rate = history.rate("stream", one.name)
    leaderless = sum(part.leader == "" and not part.paused for part in one.partitions)
    return [
        None if rate is None else round(rate, 2),
        one.messages if one.messages is not None else one.end,
        one.bytes,
        len(one.partitions),
        one.consumers,
        one.newest,
        leaderless,
    ]


def _partitions(stream: StreamSample, history: History) -> Json:
    single = len(stream.partitions) == 1
    return [
        {
            "number": part.number,
            "first": part.first,
            "end": part.end,
            "leader": part.leader,
            "replicas": part.replicas,
            "in_sync": part.in_sync,
            "paused": part.paused,
            "readonly": part.readonly,
            "rate": history.rate("stream", stream.name)
            if single
            else history.rate("partition", stream.name, part.number),
        }
        for part in stream.partitions
    ]


def _consumer_json(one: ConsumerSample) -> Json:
    return {
        "stream": one.stream,
        "name": one.name,
        "lag": one.lag,
        "unprocessed": one.unprocessed,
        "ack_pending": one.ack_pending,
        "redelivered": one.redelivered,
        "waiting": one.waiting,
        "delivered": one.delivered,
        "ack_floor": one.ack_floor,
        "kind": "push" if one.is_push else "pull",
        "paused": one.paused,
        "pins": [[pin.group, pin.client, pin.since] for pin in one.pins],
    }


def _group_json(group: GroupSample) -> Json:
    return {
        "state": group.state,
        "coordinator": group.coordinator,
        "generation": group.generation,
        "lag": group.lag,
        "members": [[name, list(topics)] for name, topics in group.members.items()],
        "partitions": [
            [row.topic, row.partition, row.member, row.committed, row.end, row.lag]
            for row in group.partitions
        ],
    }


def _gateway_json(one: GatewaySample, history: History) -> Json:
    found: dict[str, Json] = {
        "id": one.id,
        "address": one.address,
        "status": one.status,
        "leads": one.leaders,
        "figures": None,
    }
    figures = one.figures
    if figures is not None:
        found["leads"] = figures.led if one.leaders is None else one.leaders
        found["figures"] = {
            "ready": figures.ready,
            "unmet": list(figures.unmet),
            "led": figures.led,
            "bound": figures.bound,
            "connections": figures.connections,
            "calls": figures.calls,
            "pending": figures.pending_acks,
            "ack_lag": figures.raw_ack_lag,
            "reads": figures.reads,
            "buffered": figures.buffered_bytes,
            "publishes": history.rate("gateway", one.id, "publishes"),
            "acks": history.rate("gateway", one.id, "acks"),
        }
    return found


def _generation_json(one: Generation) -> Json:
    return [
        round(one.at, 3),
        one.number,
        one.members,
        [list(one.joined), one.joined_count],
        [list(one.left), one.left_count],
        one.moved,
        one.coordinator,
    ]


# Messages


def messages_json(page: MessagePage, *, payloads: bool) -> dict[str, Json]:
    """Return messages as JSON, with payloads, keys and headers cut to a bound, or left out."""
    return {
        "next": page.next,
        "scanned": page.scanned,
        "payloads": payloads,
        "messages": [_message(one, payloads=payloads) for one in page.messages],
    }


def _message(one: Received, *, payloads: bool) -> Json:
    found: dict[str, Json] = {
        "offset": one.offset,
        "partition": one.partition,
        "time": one.timestamp_ns / 1e9,
        "subject": one.subject[:_HEADER],
        "size": len(one.payload),
    }
    if not payloads:
        return found
    envelope = one.envelope
    return found | {
        "key": _data(one.key, _KEY) if one.key else None,
        "value": _data(one.value, _PAYLOAD),
        "headers": [[name[:_HEADER], _data(value, _HEADER)] for name, value in one.headers[:_HEADERS]],
        "more_headers": max(len(one.headers) - _HEADERS, 0),
        "fault": one.fault,
        "envelope": None
        if envelope is None
        else {
            "ack inbox": envelope.ack_inbox[:_HEADER],
            "correlation id": envelope.correlation_id[:_HEADER],
            "ack policy": envelope.ack_policy.name,
        },
    }


def _data(data: bytes, most: int) -> Json:
    """Return bytes as text if they are UTF-8, otherwise in base64; cut to a bound."""
    shown = data[:most]
    found: dict[str, Json] = {"size": len(data)}
    try:
        # A character may be cut in two.
        found["text"] = codecs.getincrementaldecoder("utf-8")().decode(shown, final=len(shown) == len(data))
    except UnicodeDecodeError:
        found["base64"] = base64.b64encode(shown).decode()
    return found
