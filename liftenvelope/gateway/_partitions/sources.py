"""Sources of partitions that copy from another partition: where nats-server starts to copy. Without I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import uuid4

from liftenvelope.jetstream.stream_config import StreamSource, SubjectTransform

__all__ = ["copied_sequence", "copied_subject", "distinct_source"]

#: Prefix of filters that match nothing: the gateway publishes on no such subject, and clients may not.
_NEVER: Final = "_lift.copy."


def distinct_source(source: StreamSource, subject: str) -> StreamSource:
    """Return a source that nats-server takes for another one than all earlier sources of the same stream.

    nats-server ignores ``opt_start_seq`` if it finds a message of the source in the copying stream, and
    continues after the newest of these. So messages published while the copy was paused would be copied, and
    messages that the copy recorded itself would be stored twice. The header of a copied message identifies
    the source by the name of its stream, its filters and their destinations. An additional filter that
    matches nothing gives the source an identity of its own.

    Args:
        source: The source, with its start.
        subject: Subject of the messages to copy.
    """
    never = SubjectTransform(src=f"{_NEVER}{uuid4().hex}")
    return replace(source, filter_subject=None, subject_transforms=(SubjectTransform(src=subject), never))


def copied_subject(source: StreamSource) -> str:
    """Return the subject of the messages that are copied from a source."""
    if source.subject_transforms:
        return source.subject_transforms[0].src
    return source.filter_subject or ">"


def copied_sequence(header: str, source: StreamSource) -> int:
    """Return the sequence in its source of a copied message; 0 if it was copied from another source.

    Args:
        header: Header ``Nats-Stream-Source`` of the message: stream, sequence, filters, destinations and
            subject; empty for none.
        source: The source.

    Example:
        >>> copied_sequence("A 7 > > orders", StreamSource(name="A"))
        7
        >>> copied_sequence("A 7 > > orders", StreamSource(name="A", filter_subject="orders"))
        0
    """
    name, *fields = header.split(" ")
    filters = [transform.src for transform in source.subject_transforms] or [source.filter_subject or ">"]
    return int(fields[0]) if (name, fields[1:2]) == (source.name, ["\f".join(filters)]) else 0
