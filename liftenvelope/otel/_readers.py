"""Spans of receiving from Liftbridge, and by members of groups."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.envelope import Message as EnvelopeMessage
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._buffered import buffered
from liftenvelope.otel._member_lag import member_lag
from liftenvelope.otel._reconnects import reconnects
from liftenvelope.otel._telemetry import internal

if TYPE_CHECKING:
    from liftenvelope.otel._patches import Patches
    from liftenvelope.otel._telemetry import Telemetry

__all__ = ["patch_groups", "patch_subscriptions"]

#: Streams of the server, such as that of the events of a cluster, which the client reads by a subscription.
_RESERVED: Final = "__"


def patch_subscriptions(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument the subscriptions and the group members of the Liftbridge client.

    Raises:
        MissingExtraError: The extra of the client is not installed.
    """
    from liftenvelope.client import Consumer, MergedSubscription, Subscription
    from liftenvelope.client.blocking import BlockingSubscription

    for kind in (Subscription, MergedSubscription, Consumer):
        _patch_reader(patches, telemetry, kind)
    patches.replace(Subscription, "next", partial(_one, telemetry))
    patches.replace(BlockingSubscription, "__next__", partial(_blocking_one, telemetry))
    patches.replace(Consumer, "open", partial(_internally, lambda _: None))


def patch_groups(patches: Patches, telemetry: Telemetry) -> None:
    """Instrument the members of groups over NATS.

    Raises:
        MissingExtraError: The extra of groups is not installed.
    """
    from liftenvelope.group import GroupConsumer

    _patch_reader(patches, telemetry, GroupConsumer)
    patches.replace(GroupConsumer, "__aiter__", lambda _: lambda self: self)  # so that __anext__ is called
    patches.replace(GroupConsumer, "open", partial(_internally, partial(_watch_member, telemetry)))


def _watch_member(telemetry: Telemetry, member: Any) -> None:
    reconnects.watch(member.nc, "nats")
    buffered.watch(member, "group")
    member_lag.watch_member(member, lambda topic: telemetry.options.destinations.find(topic).label)


def _patch_reader(patches: Patches, telemetry: Telemetry, kind: type) -> None:
    patches.replace(kind, "__anext__", partial(_one, telemetry))
    patches.replace(kind, "batches", partial(_lists, telemetry))
    if hasattr(kind, "arrow_batches"):
        patches.replace(kind, "arrow_batches", partial(_arrow, telemetry))


def _internally(begin: Callable[[Any], None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose tasks record nothing: what they read is recorded when it is handed out."""

    async def open(self: Any) -> Any:  # noqa: A001 - the name of the method
        begin(self)
        with internal():
            return await original(self)

    return open


def _one(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def one(self: Any, *args: Any, **options: Any) -> Any:
        message = await original(self, *args, **options)
        if message is not None and telemetry.applies:
            _record(telemetry, self, [message], time.time_ns())
        return message

    return one


def _blocking_one(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    def one(self: Any) -> Any:
        message = original(self)
        if telemetry.applies:
            _record(telemetry, self, [message], time.time_ns())
        return message

    return one


def _lists(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def batches(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(original(self, *args, **options)) as found:
            async for messages in found:
                if telemetry.applies:
                    _record(telemetry, self, messages, time.time_ns())
                yield messages

    return batches


def _arrow(telemetry: Telemetry, original: Callable[..., Any]) -> Callable[..., Any]:
    async def arrow_batches(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(original(self, *args, **options)) as found:
            async for batch in found:
                if telemetry.applies:
                    stream, group = getattr(self, "stream", ""), getattr(self, "group", "")
                    topics = {stream or key[0] for key in getattr(self, "assignment", [stream])}
                    destination = topics.pop() if len(topics) == 1 else ""
                    scene = telemetry.scene(names.RECEIVE, destination, group=group)
                    telemetry.received_rows(scene, batch.num_rows)
                yield batch

    return arrow_batches


def _record(telemetry: Telemetry, reader: Any, messages: Sequence[Any], at_ns: int) -> None:
    """Record messages that a reader handed out: one span for each of their streams or topics."""
    found: dict[str, list[Any]] = {}
    for message in messages:
        destination = message.stream if isinstance(message, EnvelopeMessage) else message.topic
        found.setdefault(destination, []).append(message)
    for destination, some in found.items():
        if not destination.startswith(_RESERVED):
            scene = telemetry.scene(names.RECEIVE, destination, group=getattr(reader, "group", ""))
            telemetry.received(scene, some, at_ns)
