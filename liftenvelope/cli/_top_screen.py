"""Screen of ``liftenvelope top``: rows of a sample, in an order, within the height of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from liftenvelope.cli._output.terminal import counted, plain, shown

if TYPE_CHECKING:
    from liftenvelope.monitor import History, MonitorAlert, Snapshot, StreamSample

__all__ = ["ORDERS", "sample_json", "screen"]

#: Orders of the rows, of which the first one is the default.
ORDERS: Final = ("rate", "messages", "name")
_ALERTS: Final = 3
#: Lines without rows: the first line, headings, blank lines and notes on rows that are left out.
_FRAME: Final = 9
_FEWEST: Final = 3
#: Blanks between two columns, and the width from which a column of names may be cut.
_GAP: Final = 2
_NAME: Final = 8


def screen(
    history: History, alerts: Sequence[MonitorAlert], where: str, order: str, height: int, width: int
) -> Group:
    """Return the screen of the newest sample.

    Args:
        history: History with at least one sample.
        alerts: Alerts of the sample.
        where: Addresses of the servers.
        order: One of :data:`ORDERS`.
        height: Lines of the terminal.
        width: Columns of the terminal.
    """
    latest = history.latest
    assert latest is not None
    readers = sorted(_readers(latest, history), key=lambda row: (-(row[4] or 0), row[:2]))
    if order == "name":
        readers.sort(key=lambda row: row[:2])
    free = max(height - _FRAME - min(len(alerts), _ALERTS), 2 * _FEWEST)
    of_readers = min(len(readers), max(free // 2, _FEWEST))
    streams = _ordered(latest, history, order)
    return Group(
        Text(_head(latest, history, where, order), style="bold", no_wrap=True, overflow="ellipsis"),
        *map(_alert_line, alerts[:_ALERTS]),
        _table(_STREAM_COLUMNS, [_stream_row(one, history) for one in streams], free - of_readers, width),
        Text(),
        _table(_READER_COLUMNS, readers, max(of_readers, 1), width),
    )


_STREAM_COLUMNS: Final = ("stream", "messages/s", "recorded", "kept", "bytes", "partitions")
_TEXTS: Final = ("stream", "kind", "name", "stream or members")
_READER_COLUMNS: Final = ("kind", "name", "stream or members", "messages/s", "lag")


def _head(latest: Snapshot, history: History, where: str, order: str) -> str:
    moment = f"{datetime.fromtimestamp(latest.at, UTC):%H:%M:%S}"
    total = history.rate("total")
    rate = "-" if total is None else f"{total:,.0f}"
    what = f"{counted(len(latest.streams), 'stream')}, {rate} messages/s, sorted by {order}"
    return shown(f"{moment} UTC  {where}  {what}")


def _alert_line(alert: MonitorAlert) -> Text:
    style = "red" if alert.severity == "error" else "yellow"
    line = shown(f"{alert.severity}: {alert.name}: {alert.text}")
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def _ordered(latest: Snapshot, history: History, order: str) -> list[StreamSample]:
    found = sorted(latest.streams.values(), key=lambda one: one.name)
    if order == "rate":
        found.sort(key=lambda one: -(history.rate("stream", one.name) or 0.0))
    elif order == "messages":
        found.sort(key=lambda one: -(one.end or 0))
    return found


def _stream_row(one: StreamSample, history: History) -> tuple[object, ...]:
    rate = history.rate("stream", one.name)
    return one.name, rate, one.end, one.messages, one.bytes, len(one.partitions)


def _readers(latest: Snapshot, history: History) -> Iterator[tuple[Any, ...]]:
    for group in latest.groups.values():
        rate = history.rate("group", group.name)
        yield "group", group.name, counted(len(group.members), "member"), rate, group.lag
    for one in latest.consumers.values():
        yield "consumer", one.name, one.stream, history.rate("consumer", one.stream, one.name), one.lag


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], most: int, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="reverse")
    cells = [[_cell(value) for value in row] for row in rows[:most]]
    widest = [max((len(row[index]) for row in cells), default=0) for index in range(len(columns))]
    texts = [name in _TEXTS for name in columns]
    natural = [max(len(name), one) for name, one in zip(columns, widest, strict=True)]
    least = [min(one, _NAME) if is_text else one for one, is_text in zip(widest, texts, strict=True)]
    more = f"{len(rows) - most:,} more" if len(rows) > most else ""
    natural[0], least[0] = max(natural[0], len(more)), max(least[0], len(more))
    widths = _fitted(natural, least, width - _GAP * (len(columns) - 1))
    for name, is_text, one in zip(columns, texts, widths, strict=True):
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(name, justify=justify, width=one, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row)
    if more:
        table.add_row(Text(more, style="dim"))
    return table


def _fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths of columns that fit, if they can: headings and names are cut before any number is."""
    widths = list(natural)
    while sum(widths) > room and (longer := [i for i, one in enumerate(widths) if one > least[i]]):
        widths[max(longer, key=widths.__getitem__)] -= 1
    return widths


def _cell(value: object) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:,.1f}" if isinstance(value, float) else _plain_cell(value))


def _plain_cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else shown(str(value))


def sample_json(history: History, alerts: Sequence[MonitorAlert]) -> dict[str, Any]:
    """Return the newest sample with its rates, for ``--json``."""
    latest = history.latest
    assert latest is not None
    names = ("stream", "rate", "recorded", "kept", "bytes", "partitions")
    kinds = ("kind", "name", "of", "rate", "lag")
    return {
        "at": datetime.fromtimestamp(latest.at, UTC),
        "rate": history.rate("total"),
        "streams": [
            dict(zip(names, _stream_row(one, history), strict=True))
            for one in _ordered(latest, history, "name")
        ],
        "readers": [dict(zip(kinds, row, strict=True)) for row in _readers(latest, history)],
        "alerts": plain(alerts),
    }
