"""JetStream names of Liftbridge streams and their partitions.

Liftbridge stream names may contain characters that JetStream stream names and bucket keys can't: dots,
slashes and non-ASCII letters, up to 240 bytes. Each byte other than an ASCII letter, a digit, ``-`` or ``_``
is therefore written as ``=`` and two hexadecimal digits. A result that is too long is cut, and a hash of the
name is appended.
"""

from __future__ import annotations

import hashlib
from typing import Final

from liftenvelope.group.names import token_of

__all__ = ["PARTITION_PREFIX", "encode_name", "partition_stream", "partition_subject"]

#: Prefix of the names of the JetStream streams that hold partitions.
PARTITION_PREFIX: Final = "lift_"
#: Longest encoded name, in bytes. JetStream allows 255 bytes, including the prefix and the partition number.
_LONGEST: Final = 200
_KEPT: Final = 140
_HASH_DIGITS: Final = 32


def encode_name(name: str) -> str:
    """Encode a stream name as a bucket key or as part of a JetStream stream name; the result is unique.

    Example:
        >>> encode_name("orders"), encode_name("a.b"), encode_name("ü")
        ('orders', 'a=2Eb', '=C3=BC')
    """
    text = token_of(name)
    if len(text) <= _LONGEST:
        return text
    # "==" occurs in no other encoded name, because "=" always precedes two digits.
    return f"{text[:_KEPT]}=={hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"


def partition_stream(name: str, partition: int) -> str:
    """Return the name of the JetStream stream that holds a partition.

    Example:
        >>> partition_stream("orders.eu", 2)
        'lift_orders=2Eeu_2'
    """
    return f"{PARTITION_PREFIX}{encode_name(name)}_{partition}"


def partition_subject(subject: str, partition: int) -> str:
    """Return the subject that a partition records: ``subject`` for partition 0, else ``subject.<number>``.

    Example:
        >>> partition_subject("orders", 0), partition_subject("orders", 3)
        ('orders', 'orders.3')
    """
    return f"{subject}.{partition}" if partition else subject
