"""Broker selection for calls that several brokers can answer."""

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
    """Choose one of the brokers.

    Args:
        selection: ``"random"``; ``"latency"``, the broker with the fastest connect, brokers without one
            first; ``"workload"``, the broker with the fewest partitions; or a function.
        brokers: The brokers to choose from, at least one.
        latency: Returns the connect time of an address in seconds, None if unknown.

    Raises:
        UsageTypeError: The function returned something other than one of the brokers.
    """
    if callable(selection):
        chosen = selection(tuple(brokers))
        if chosen not in brokers:
            raise UsageTypeError(
                f"broker_selection must return one of the brokers it is given, got {chosen!r}"
            )
        return chosen
    shuffled = random.sample(brokers, len(brokers))
    if selection == "latency":
        return min(shuffled, key=lambda broker: latency(broker.address) or 0.0)
    if selection == "workload":
        return min(shuffled, key=lambda broker: broker.partition_count)
    return shuffled[0]
