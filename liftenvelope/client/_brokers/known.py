"""Brokers that a client knows from metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from liftenvelope.client.metadata import BrokerInfo

__all__ = ["KnownBrokers"]

#: Seconds after which a broker that no answer names is forgotten. A broker of a new cluster may name itself
#: alone, and keeps that list for two minutes (Liftbridge 1.9.0 and 26.01).
_FORGOTTEN_AFTER: Final = 180.0


class KnownBrokers:
    """Brokers by id. One that the latest metadata leaves out is forgotten after three minutes.

    Brokers leave a cluster for good: each roll-out of gateways may give them new ids and addresses.

    Args:
        most: Maximum number of brokers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._brokers: dict[str, BrokerInfo] = {}
        #: Time of the first answer without a broker, by id, for brokers that the latest answer leaves out.
        self._missing: dict[str, float] = {}

    def __contains__(self, broker_id: str) -> bool:
        return broker_id in self._brokers

    def __iter__(self) -> Iterator[BrokerInfo]:
        """Iterate over the brokers: first those that the latest metadata names."""
        return iter(sorted(self._brokers.values(), key=lambda broker: broker.id in self._missing))

    def __len__(self) -> int:
        return len(self._brokers)

    def get(self, broker_id: str) -> BrokerInfo | None:
        """Return the broker with an id; None if it is not known."""
        return self._brokers.get(broker_id)

    def preferred(self, addresses: Collection[str]) -> list[BrokerInfo]:
        """Return the brokers with these addresses: only those in the latest metadata, if there are any."""
        found = [broker for broker in self._brokers.values() if broker.address in addresses]
        return [broker for broker in found if broker.id not in self._missing] or found

    def update(self, named: Mapping[str, BrokerInfo], leading: Collection[str], now: float) -> None:
        """Take over the brokers of new metadata.

        Args:
            named: Brokers in the metadata, by id.
            leading: Ids of leaders and coordinators in the metadata, whose brokers are kept.
            now: Time of the answer, by a monotonic clock.
        """
        if len(self._brokers.keys() | named.keys()) > self._most:  # new brokers in every answer
            self._brokers.clear()
        self._brokers.update(named)
        left_out = self._brokers.keys() - named.keys() - set(leading)
        self._missing = {broker: self._missing.get(broker, now) for broker in left_out}
        for broker, since in list(self._missing.items()):
            if now - since >= _FORGOTTEN_AFTER:
                del self._brokers[broker], self._missing[broker]
