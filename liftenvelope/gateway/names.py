"""What a Liftbridge stream and its partitions are called in JetStream.

Names of Liftbridge streams hold what JetStream's names and the keys of its buckets can't: dots, slashes,
letters beyond ASCII, up to 240 bytes. So each byte that is no letter, digit, ``-`` or ``_`` is written as
``=`` and two hexadecimal digits, and the middle of what gets too long gives way to a hash.
"""

from __future__ import annotations

import hashlib
from typing import Final

from liftenvelope.group.names import token_of

__all__ = ["PARTITION_PREFIX", "encode_name", "partition_stream", "partition_subject"]

#: What the names of the JetStream streams that hold partitions begin with.
PARTITION_PREFIX: Final = "lift_"
#: JetStream takes 255 bytes, of which a prefix and the number of the partition need some.
_LONGEST: Final = 200
_KEPT: Final = 140
_HASH_DIGITS: Final = 32


def encode_name(name: str) -> str:
    """Return a name as a key of a bucket, or a part of a JetStream stream's name. No two give the same.

    Example:
        >>> encode_name("orders"), encode_name("a.b"), encode_name("ü")
        ('orders', 'a=2Eb', '=C3=BC')
    """
    text = token_of(name)
    if len(text) <= _LONGEST:
        return text
    # "==" stands nowhere else: "=" is always before two digits.
    return f"{text[:_KEPT]}=={hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"


def partition_stream(name: str, partition: int) -> str:
    """Return the name of the JetStream stream that holds a partition.

    Example:
        >>> partition_stream("orders.eu", 2)
        'lift_orders=2Eeu_2'
    """
    return f"{PARTITION_PREFIX}{encode_name(name)}_{partition}"


def partition_subject(subject: str, partition: int) -> str:
    """Return the subject that a partition records: that of the stream, with its number unless it is 0.

    Example:
        >>> partition_subject("orders", 0), partition_subject("orders", 3)
        ('orders', 'orders.3')
    """
    return f"{subject}.{partition}" if partition else subject
