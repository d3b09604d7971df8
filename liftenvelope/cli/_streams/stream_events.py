"""Events of ``liftenvelope stream watch``: JetStream's advisories, and Liftbridge's activity stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._connecting.servers import CommandServers
from liftenvelope.cli._output.terminal import echo_json, plain, shown, shown_time
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.client import ActivityEvent
    from liftenvelope.jetstream import Advisory

__all__ = ["Watch", "watch_jetstream", "watch_liftbridge"]

_AUDIT: Final = "api_audit"
#: Fields that stand at the beginning of a line, or that tell a person nothing.
_LEFT_OUT: Final = frozenset({"type", "id", "timestamp", "timestamp_ns", "offset", "value", "server_id"})
#: Longest value to show in a line: an audit has the whole request and the whole response.
_LONGEST: Final = 200


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Options of ``stream watch``.

    Attributes:
        names: Streams whose events to show; empty for all.
        start: First event: a word, an offset or a time.
        limit: Number of events after which to end; None for no limit.
        no_follow: True to end after the newest event.
        api: True to show requests to JetStream's API as well.
        as_json: True to print a record for each event.
    """

    names: tuple[str, ...]
    start: int | str | datetime
    limit: int | None
    no_follow: bool
    api: bool
    as_json: bool

    def show(self, kind: str, moment: datetime | int | None, facts: Mapping[str, Any]) -> None:
        """Print an event: a line for people, or a record."""
        if self.as_json:
            echo_json({"event": kind, **facts})
            return
        given = {name: _word(one) for name, one in facts.items() if name not in _LEFT_OUT}
        words = " ".join(f"{name}={text}" for name, text in given.items() if text)
        click.echo(shown(f"{shown_time(moment)}  {kind}  {words}"))


async def watch_jetstream(servers: CommandServers, watch: Watch) -> None:
    """Print advisories as they arrive.

    Raises:
        UsageError: An option for kept events was given: servers keep no advisories. Or a name is invalid.
        PermissionDeniedError: The user may not subscribe to advisories.
        TransportError: The connection was lost for good.
    """
    from liftenvelope.jetstream import Advisories, LostAdvisories
    from liftenvelope.jetstream.names import check_stream_name

    for name in watch.names:
        check_stream_name(name)
    if watch.start != "new" or watch.no_follow:
        name = "--no-follow" if watch.no_follow else "--start"
        raise UsageError(f"{name} must be left out for JetStream: servers do not keep events")
    prefix = f"{servers.context.jetstream_event_prefix or '$JS.EVENT'}.ADVISORY"
    count = 0
    async with servers.nats() as nc, Advisories(nc, prefix=prefix, consumers_only=False) as advisories:
        click.echo("Note: watching for events until Ctrl-C", err=True)
        async for one in advisories:
            if isinstance(one, LostAdvisories):
                watch.show("lost", None, {"count": one.count})
            elif _is_wanted(one, watch):
                watch.show(one.type, one.time, _facts(one))
                count += 1
            if count == watch.limit:
                return


def _is_wanted(advisory: Advisory, watch: Watch) -> bool:
    if advisory.type == _AUDIT:
        subject = str(advisory.data.get("subject", "")).split(".")
        return watch.api and (not watch.names or not set(subject).isdisjoint(watch.names))
    return not watch.names or advisory.stream in watch.names


def _facts(advisory: Advisory) -> dict[str, Any]:
    """Return the fields of an advisory, with the stream and the consumer first, and without login tokens."""
    client = advisory.data.get("client")
    facts = {name: value for name in ("stream", "consumer") if (value := getattr(advisory, name))}
    facts |= {name: value for name, value in advisory.data.items() if name != "type"}
    if isinstance(client, dict):
        facts["client"] = {name: value for name, value in client.items() if name != "jwt"}
    return facts


async def watch_liftbridge(servers: CommandServers, watch: Watch) -> None:
    """Print events of the activity stream.

    Raises:
        UsageError: An option of JetStream was given, or the start counts from the end.
        NoSuchStreamError: The cluster keeps no activity stream.
    """
    if watch.api:
        servers.need("nats", "--api")
    if isinstance(watch.start, int) and watch.start < 0:
        raise UsageError(f"--start must be an offset, a time or a word for events, got {watch.start}")
    count = 0
    async with (
        servers.liftbridge() as client,
        client.activity(start=watch.start, stop="latest" if watch.no_follow else None) as events,
    ):
        async for event in events:
            if watch.names and _streams(event).isdisjoint(watch.names):
                continue
            watch.show(type(event).__name__, event.timestamp_ns, plain(event))
            count += 1
            if count == watch.limit:
                return


def _streams(event: ActivityEvent) -> set[str]:
    one = getattr(event, "stream", None)
    return set(getattr(event, "streams", ())) if one is None else {one}


def _word(value: object) -> str:
    """Return a value of an event for a line: names in place of objects, and long texts cut."""
    if isinstance(value, Mapping):
        user, host = value.get("user") or value.get("name") or "", value.get("host")
        text = f"{user}@{host}" if host else str(user)
    elif isinstance(value, list):
        text = ",".join(map(_word, value))
    else:
        text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
