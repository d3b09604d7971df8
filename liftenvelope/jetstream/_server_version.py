"""Version of the server that leads a stream or a consumer, from the metadata in its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["is_older", "server_version"]

#: Entry of the metadata with the version; missing before 2.11.
_VERSION: Final = "_nats.ver"
_NUMBERS: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.")


def server_version(metadata: Mapping[str, str]) -> str:
    """Return the version of the server, empty before 2.11.

    Args:
        metadata: Metadata of the configuration in the server's answer.
    """
    return metadata.get(_VERSION, "")


def is_older(metadata: Mapping[str, str], than: tuple[int, int]) -> bool:
    """Return whether the server is older than a version of 2.11 or later.

    Args:
        metadata: Metadata of the configuration in the server's answer.
        than: Major and minor number of the version.

    Example:
        >>> is_older({"_nats.ver": "2.12.8"}, than=(2, 14)), is_older({}, than=(2, 11))
        (True, True)
    """
    version = server_version(metadata)
    numbers = _NUMBERS.match(version)
    if numbers is None:
        return not version  # some other server's way to count is not older
    return (int(numbers[1]), int(numbers[2])) < than
