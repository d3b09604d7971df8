"""Changes that the page may make if the operator allows them: pause, resume, unpin, read-only, purge.

Each change is one request to the servers, and one that an operator can take back, but for a purge. Streams,
consumers and groups are created, edited and deleted by the command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.client import Client
    from liftenvelope.jetstream import JetStream

__all__ = [
    "Changes",
    "JetStreamChanges",
    "LiftbridgeChanges",
    "ServerChange",
    "change_from_json",
    "resume_partitions",
]

#: Seconds that a consumer can be paused: a year at most.
_LONGEST: Final = 366 * 86_400.0
_MAX_NAME: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class ServerChange:
    """Change of a stream or a consumer.

    Attributes:
        action: Name of the change, such as ``pause consumer``.
        stream: Name of the stream.
        consumer: Name of the consumer; empty for a change of a stream.
        group: Priority group to unpin.
        seconds: Seconds to pause a consumer.
        confirm: Name of the stream once more: required to purge it.
    """

    action: str
    stream: str
    consumer: str = ""
    group: str = ""
    seconds: float = 0.0
    confirm: str = ""

    def __str__(self) -> str:
        """Return the change for a line of the log."""
        place = f"{self.stream}/{self.consumer}" if self.consumer else self.stream
        more = f", group {self.group}" if self.group else f", for {self.seconds:g} s" if self.seconds else ""
        return f"{self.action} {place}{more}"


class Changes(Protocol):
    """Makes changes through one connection."""

    async def make(self, change: ServerChange) -> str:
        """Make a change; return what was done.

        Raises:
            UsageError: These servers have no such change, or a value is invalid.
            LiftEnvelopeError: The servers refused it or do not answer.
        """
        ...


def change_from_json(found: object) -> ServerChange:
    """Return the change that a request asks for.

    Raises:
        UsageError: It is not an object with the fields of a change, or a value has the wrong type.
    """
    if not isinstance(found, dict):
        raise UsageError(f"a change must be a JSON object, got {type(found).__name__}")
    names = ("action", "stream", "consumer", "group", "confirm")
    if unknown := sorted(str(name)[:40] for name in found.keys() - {*names, "seconds"}):
        raise UsageError(f"a change must have no other fields, got {unknown[0]!r}")
    texts = {name: found.get(name, "") for name in names}
    for name, value in texts.items():
        if not isinstance(value, str) or len(value) > _MAX_NAME:
            raise UsageError(f"{name} must be a text of at most {_MAX_NAME} characters")
    for name in ("action", "stream"):
        if not texts[name]:
            raise UsageError(f"{name} must not be empty")
    seconds = found.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LONGEST:
        raise UsageError(f"seconds must be a number from 0 to {_LONGEST:.0f}")
    return ServerChange(**texts, seconds=float(seconds))


_Maker: TypeAlias = Callable[[ServerChange], Awaitable[str]]


async def _made(makers: Mapping[str, _Maker], change: ServerChange) -> str:
    maker = makers.get(change.action)
    if maker is None:
        raise UsageError(f"action must be one of {', '.join(makers)}, got {change.action[:40]!r}")
    return await maker(change)


class JetStreamChanges:
    """Changes of a JetStream account.

    Args:
        js: JetStream.
    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._makers: Mapping[str, _Maker] = {
            "pause consumer": self._pause,
            "resume consumer": self._resume,
            "unpin consumer": self._unpin,
            "purge stream": self._purge,
        }

    async def make(self, change: ServerChange) -> str:
        """Make a change; return what was done.

        Raises:
            UsageError: There is no such change, or a value is invalid.
            JetStreamError, CallTimeoutError, TransportError: The change was not made, or its outcome is
                unknown.
        """
        return await _made(self._makers, change)

    async def _pause(self, change: ServerChange) -> str:
        if not change.seconds:
            raise UsageError("seconds must be more than 0 to pause a consumer, got 0")
        await (await self._js.consumer(change.stream, change.consumer)).pause(change.seconds)
        return f"paused consumer {change.consumer} for {change.seconds:g} s"

    async def _resume(self, change: ServerChange) -> str:
        await (await self._js.consumer(change.stream, change.consumer)).resume()
        return f"resumed consumer {change.consumer}"

    async def _unpin(self, change: ServerChange) -> str:
        await (await self._js.consumer(change.stream, change.consumer)).unpin(change.group)
        return f"unpinned the client of group {change.group}"

    async def _purge(self, change: ServerChange) -> str:
        if change.confirm != change.stream:
            raise UsageError("confirm must be the name of the stream to purge it")
        deleted = await (await self._js.stream(change.stream)).purge()
        return f"deleted {deleted:,} {'message' if deleted == 1 else 'messages'} of {change.stream}"


class LiftbridgeChanges:
    """Changes of a Liftbridge cluster or a gateway. Each is for all partitions of a stream.

    Args:
        client: An open client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._makers: Mapping[str, _Maker] = {
            "pause stream": self._pause,
            "resume stream": self._resume,
            "make read-only": self._readonly,
            "make writable": self._writable,
        }

    async def make(self, change: ServerChange) -> str:
        """Make a change; return what was done.

        Raises:
            UsageError: There is no such change.
            ServerError, CallTimeoutError, TransportError: The change was not made, or its outcome is unknown.
        """
        return await _made(self._makers, change)

    async def _pause(self, change: ServerChange) -> str:
        await self._client.pause_stream(change.stream)
        return f"paused {change.stream}"

    async def _resume(self, change: ServerChange) -> str:
        await resume_partitions(self._client, change.stream)
        return f"resumed {change.stream}"

    async def _readonly(self, change: ServerChange) -> str:
        await self._client.set_stream_readonly(change.stream, readonly=True)
        return f"made {change.stream} read-only"

    async def _writable(self, change: ServerChange) -> str:
        await self._client.set_stream_readonly(change.stream, readonly=False)
        return f"made {change.stream} writable"


async def resume_partitions(client: Client, stream: str, partitions: Iterable[int] = ()) -> None:
    """Wake paused partitions of a Liftbridge stream.

    The API has no call for this: a subscription wakes its partition.

    Args:
        client: An open client.
        stream: Name of the stream.
        partitions: Numbers of the partitions; empty for all.
    """
    wanted = tuple(partitions)
    if not wanted:
        wanted = tuple(range((await client.fetch_metadata(streams=[stream])).partition_count(stream)))
    for number in wanted:
        async with client.subscribe(stream, partition=number, start="new", resume=True):
            pass
