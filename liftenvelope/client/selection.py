"""Which broker to ask where several can answer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from liftenvelope.errors import UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftenvelope.client.metadata import BrokerInfo
    from liftenvelope.client.options import BrokerSelection

__all__ = ["choose_broker"]


def choose_broker(
    selection: BrokerSelection, brokers: Sequence[BrokerInfo], latency: Callable[[str], float | None]
) -> BrokerInfo:
    """Return one of the brokers.

    Args:
        selection: ``"random"``; ``"latency"``: the one that was connected to the quickest, those that were
            never connected to first; ``"workload"``: the one with the fewest partitions; or a function.
        brokers: At least one.
        latency: Tells the seconds for an address, None where they are not known.

    Raises:
        UsageTypeError: The function returned something else than one of the brokers.
    """
    if callable(selection):
        chosen = selection(tuple(brokers))
        if chosen not in brokers:
            raise UsageTypeError(f"broker_selection returned {chosen!r}, which is none of the brokers it got")
        return chosen
    shuffled = random.sample(brokers, len(brokers))
    if selection == "latency":
        return min(shuffled, key=lambda broker: latency(broker.address) or 0.0)
    if selection == "workload":
        return min(shuffled, key=lambda broker: broker.partition_count)
    return shuffled[0]
