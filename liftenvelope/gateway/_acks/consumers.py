"""Creates, finds and deletes the ack consumers of a partition.

A gateway that starts needs the consumers of thousands of partitions, and usually a partition has one. So a
reader that starts requests the list of infos (``CONSUMER.LIST``): one request per partition. The list is used
only if it is complete:

- A page holds 256 infos. If the page is full, the names are requested, 1,024 per page, and then the infos of
  the ack consumers alone. Pages of a list that changes meanwhile may also leave out a consumer.
- In a cluster, the server that answers gathers the infos from the servers that hold the consumers. It waits
  up to 4 seconds for a lost server, and then names the consumer as missing, or lists it without a leader and
  without its position. Such consumers are asked for one by one. If the list takes too long, the names are
  requested, which no other server has to provide.

A reader that replaces its consumer may do so because a server is lost, so it requests the names at once.

nats-server needs half as long to give a consumer another subject as to create one and delete the other. So a
reader that starts takes up the consumer of the last one, if that has acknowledged everything and is gone:
nats-server refuses the change while anybody subscribes to the old subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftenvelope.errors import CallTimeoutError, ConsumerNotFoundError, JetStreamError
from liftenvelope.gateway._partitions.feed import ask_start
from liftenvelope.jetstream.api import parse_ns
from liftenvelope.jetstream.listing import consumer_names
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftenvelope.jetstream.api import Api

__all__ = ["ACK_CONSUMER", "AckConsumer", "AckConsumers", "ack_consumer"]

#: Prefix of consumer names.
ACK_CONSUMER: Final = "lift-acks-"
_NS: Final = 1_000_000_000
#: Seconds before the newest message: messages since then are acked again if no ack floor is known.
_ACK_AGAIN: Final = 60
#: Seconds before JetStream redelivers a message. Readers recover sooner: see the docstring of the reader's
#: module.
_ACK_WAIT: Final = 30
#: Maximum number of unacknowledged messages. Flow control bounds their bytes.
_MAX_PENDING: Final = 65_536
#: Error of a consumer with a larger ``max_ack_pending`` than the server or the account allows.
_TOO_MANY_PENDING: Final = 10121
#: Unanswered requests about a consumer after which its server counts as lost.
_QUESTIONS: Final = 2
#: Infos in a page of the list, if the server does not report it.
_PAGE: Final = 256
#: Notice to a reader whose consumer was taken over: a status such as JetStream itself sends.
_TAKEN_OVER: Final = b"NATS/1.0 409 Taken Over\r\n\r\n"


class AckConsumer(NamedTuple):
    """A reader's consumer: its name, ack floor and delivery subject.

    If the server that holds the consumer is lost, ``floor`` and ``inbox`` are None. If everything delivered
    is acknowledged, ``delivered`` is the number of deliveries, otherwise None.
    """

    name: str
    floor: int | None
    inbox: str | None
    delivered: int | None = None
    config: Mapping[str, Any] = MappingProxyType({})


class AckConsumers:
    """The ack consumers of one partition, of all readers.

    Args:
        api: JetStream's API.
        stream: Name of the JetStream stream.
    """

    def __init__(self, api: Api, stream: str) -> None:
        self._api = api
        self._link = Link(api.nc)
        self._stream = stream

    async def create(self, name: str, inbox: str, start: int, heartbeat: float) -> str:
        """Create a consumer; return the name of the server that holds it, empty without a cluster.

        Args:
            name: Name of the consumer.
            inbox: Subject of its deliveries.
            start: Stream sequence of the first message to deliver.
            heartbeat: Seconds between two heartbeats.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: The consumer may not be created.
        """
        subject = f"CONSUMER.CREATE.{self._stream}.{name}"
        config = ack_consumer(name, inbox, start, heartbeat)
        request = {"stream_name": self._stream, "config": config}
        try:
            return await self._api.request_as(_server, subject, request)
        except JetStreamError as exc:
            if exc.err_code != _TOO_MANY_PENDING:
                raise
        del config["max_ack_pending"]  # the server then takes the most that it or the account allows
        return await self._api.request_as(_server, subject, request)

    async def due(self, name: str) -> int:
        """Return the deliveries that a consumer's reader must have had, and one more if others are pending.

        Raises:
            ConsumerNotFoundError: There is no such consumer.
            JetStreamError, CallTimeoutError, TransportError: JetStream does not tell.
        """
        return await self._api.request_as(_due, f"CONSUMER.INFO.{self._stream}.{name}")

    async def listed(self) -> list[AckConsumer]:
        """Return the consumers, by one request if JetStream lists them all in time.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: JetStream does not tell the consumers.
        """
        try:
            page = await self._api.request_as(_page, f"CONSUMER.LIST.{self._stream}")
        except CallTimeoutError:
            return await self.named()
        if page is None:
            return await self.named()
        known, others = page
        return known + await self._ask_each(others)

    async def named(self) -> list[AckConsumer]:
        """Return the consumers, by one request for the names and one for each ack consumer.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: JetStream does not tell the consumers.
        """
        return await self._ask_each([name async for name in consumer_names(self._api, self._stream)])

    async def _ask_each(self, names: Iterable[str]) -> list[AckConsumer]:
        found = [await self._ask(name) for name in names if _is_ours(name)]
        return [one for one in found if one is not None]

    async def _ask(self, name: str) -> AckConsumer | None:
        """Return a consumer; None if another reader has deleted it, or if it is no reader's."""
        epoch = self._link.epoch
        for number in range(1, _QUESTIONS + 1):
            try:
                return await self._api.request_as(_consumer, f"CONSUMER.INFO.{self._stream}.{name}")
            except ConsumerNotFoundError:
                return None
            except CallTimeoutError:
                # Silence while the connection is lost says nothing about the server of the consumer.
                is_lost = not self._link.is_connected or self._link.epoch != epoch
                if is_lost and number == _QUESTIONS:
                    raise
        return AckConsumer(name, None, None)

    async def recent_start(self) -> int:
        """Return the stream sequence from which on messages are acked again if no ack floor is known."""
        # By JetStream's clock: with this machine's one ahead, no message would be of the last minute.
        newest = await self._api.request_as(_newest_ns, f"STREAM.INFO.{self._stream}")
        return await ask_start(self._api, self._stream, newest - _ACK_AGAIN * _NS)

    async def take_up(self, other: AckConsumer, inbox: str, heartbeat: float) -> str | None:
        """Let a consumer deliver to another subject; return its server as :meth:`create` does.

        Returns:
            None if the consumer can't be used: it has other settings, is gone, or has a reader.

        Args:
            other: The consumer.
            inbox: Subject of its deliveries from now on.
            heartbeat: Seconds between two heartbeats.

        Raises:
            CallTimeoutError, TransportError: The consumer may deliver there or not.
        """
        wanted = ack_consumer(other.name, inbox, other.config.get("opt_start_seq", 0), heartbeat)
        config = {**other.config, "deliver_subject": inbox}
        if any(config.get(key) != value for key, value in wanted.items()):
            return None  # made by another version
        request = {"stream_name": self._stream, "config": config, "action": "update"}
        try:
            return await self._api.request_as(
                _server, f"CONSUMER.CREATE.{self._stream}.{other.name}", request
            )
        except JetStreamError:
            return None

    async def take_over(self, other: AckConsumer) -> None:
        """Delete a consumer and notify its reader, which may be hung.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: The consumer may not be deleted.
        """
        if other.inbox is None:
            # The server that would answer is lost. The others record the deletion; the lost one learns later.
            subject = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{other.name}"
            await self._api.send(subject, b"", reply=self._link.new_inbox())
            return
        try:
            await self._api.request(f"CONSUMER.DELETE.{self._stream}.{other.name}")
        except ConsumerNotFoundError:
            return
        size = len(_TAKEN_OVER)
        notice = b"HPUB %b %d %d\r\n%b\r\n" % (other.inbox.encode(), size, size, _TAKEN_OVER)
        self._link.write(notice, 1, size)


def ack_consumer(name: str, inbox: str, start: int, heartbeat: float) -> dict[str, Any]:
    """Return the configuration of a consumer; the arguments are those of :meth:`AckConsumers.create`."""
    return {
        "name": name,
        "durable_name": name,
        "description": "acks of a Liftbridge partition",
        "deliver_subject": inbox,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        "ack_policy": "all",
        "ack_wait": _ACK_WAIT * _NS,
        "max_ack_pending": _MAX_PENDING,
        "max_deliver": -1,
        "num_replicas": 1,
        "replay_policy": "instant",
        "flow_control": True,
        "idle_heartbeat": int(heartbeat * _NS),
    }


def _due(info: dict[str, Any]) -> int:
    return int(info["delivered"]["consumer_seq"]) + (int(info["num_pending"]) > 0)


def _newest_ns(info: dict[str, Any]) -> int:
    return parse_ns(info["state"]["last_ts"])


def _server(info: dict[str, Any]) -> str:
    return str(info.get("cluster", {}).get("leader", ""))


def _is_ours(name: str) -> bool:
    return name.startswith(ACK_CONSUMER)


def _has_leader(info: dict[str, Any]) -> bool:
    """Return False if the server that holds the consumer is lost: the info then has no position."""
    return "cluster" not in info or bool(info["cluster"].get("leader"))


def _page(answer: dict[str, Any]) -> tuple[list[AckConsumer], dict[str, None]] | None:
    """Return the consumers of a list, and the names of those to ask for; None if the page is full."""
    infos, missing = answer.get("consumers") or [], answer.get("missing") or []
    if len(infos) + len(missing) >= answer.get("limit", _PAGE):
        return None
    known = [_consumer(info) for info in infos if _is_ours(info["name"]) and _has_leader(info)]
    unknown = [info["name"] for info in infos if not _has_leader(info)]
    return [one for one in known if one is not None], dict.fromkeys([*unknown, *missing])


def _consumer(info: dict[str, Any]) -> AckConsumer | None:
    """Return a reader's consumer; None for one that somebody else has given such a name."""
    config = info["config"]
    if not config.get("deliver_subject") or "opt_start_seq" not in config:
        return None
    # A new consumer reports an ack floor of 0. Messages before its start were done when it was created.
    floor = max(info["ack_floor"]["stream_seq"], config["opt_start_seq"] - 1)
    delivered = None if info["num_ack_pending"] else int(info["delivered"]["consumer_seq"])
    return AckConsumer(info["name"], floor, config["deliver_subject"], delivered, config)
