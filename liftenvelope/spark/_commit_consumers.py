"""Consumers of JetStream that show the progress of a streaming query to other tools.

A durable pull consumer, which nobody pulls from, is reset (ADR-60) to the message that the query reads next.
So its ack floor is the last message that the query has processed, and its pending messages are the lag.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.bulk.access import find_target
from liftenvelope.bulk.sources import JetStreamSource
from liftenvelope.errors import ConsumerExistsError
from liftenvelope.jetstream.api import natural
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    from liftenvelope.spark._options import SourceOptions

__all__ = ["CommitConsumers"]

#: Seconds to wait for an answer or a reconnect, because the query waits for it.
_TIMEOUT: Final = 2.0
#: First version of nats-server that resets consumers.
_NEEDED: Final = (2, 14)
#: Tells these consumers from those of applications, which must not be moved.
_MARK: Final = {"liftenvelope": "position of a Spark query"}


class CommitConsumers:
    """Sets the ack floor of one consumer for each stream.

    Args:
        options: Options of the query.
        name: Name of the consumers.
    """

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._requests: dict[str, JetStreamSource] = {}

    def close(self) -> None:
        """Close the connections. The next call opens them again."""
        while self._requests:
            self._requests.popitem()[1].close()

    def store(self, part: tuple[str, int], offset: int, timeout: float | None) -> None:  # noqa: ARG002
        """Set the ack floor so that the message at an offset is the next one.

        Raises:
            OptionError: The server or the stream does not support it, or an application has a consumer of
                that name.
            LiftEnvelopeError: The position was not stored.
        """
        stream, _ = part
        requests = self._requests.get(stream)
        if requests is None:
            requests = self._requests[stream] = self._opened(stream)
        requests.ask(_ack_floor, f"CONSUMER.RESET.{stream}.{self._name}", {"seq": offset + 1})

    def _opened(self, stream: str) -> JetStreamSource:
        connection = self._options.connection
        access = connection.open()
        target = find_target(
            connection.servers,
            replace(
                access,
                timeout=min(access.timeout, _TIMEOUT),
                reconnect_wait=min(access.reconnect_wait, _TIMEOUT),
            ),
        )
        requests = JetStreamSource(target, stream)
        try:
            self._create(requests)
        except BaseException:  # the next call must not move a consumer of an application
            requests.close()
            raise
        return requests

    def _create(self, requests: JetStreamSource) -> None:
        """Create the consumer, unless it exists: an equal one is that of an earlier run of the query."""
        title = f"commitConsumer={self._name!r}"
        config: dict[str, Any] = {
            "durable_name": self._name,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "replay_policy": "instant",
            "metadata": _MARK,
        }
        if self._options.subjects is not None:
            config["filter_subjects"] = list(self._options.subjects.filters)
        request = {"stream_name": requests.stream, "config": config, "action": "create"}
        retention = requests.ask(_retention, f"STREAM.INFO.{requests.stream}")
        if retention != "limits":
            text = f"{requests.stream} must have the retention limits, got {retention}"
            raise OptionError(f"{title}: {text}, where a consumer keeps or takes messages; leave it out")
        try:
            version = requests.ask(_version, f"CONSUMER.CREATE.{requests.stream}.{self._name}", request)
        except ConsumerExistsError as exc:
            text = f"{requests.stream} has a consumer of that name with another config"
            raise OptionError(f"{title}: {text}; choose another name, or delete it") from exc
        if version < _NEEDED:
            raise OptionError(f"{title} needs nats-server 2.14, which resets consumers; leave it out")


def _ack_floor(answer: dict[str, Any]) -> int:
    return natural(answer["ack_floor"]["stream_seq"])


def _retention(answer: dict[str, Any]) -> str:
    return str(answer["config"].get("retention", "limits"))


def _version(answer: dict[str, Any]) -> tuple[int, ...]:
    """Return the version of the server; (0,) for one that is too old to tell."""
    text = str((answer["config"].get("metadata") or {}).get("_nats.ver", "0"))
    return tuple(int(part) for part in text.partition("-")[0].split(".")[:2])
