"""Decides who filters the subjects of a JetStream read: the server, or the reader.

A server searches the next message that matches for each message that a filtered consumer gets, and the search
takes longer the more subjects match. So its filter pays for few messages of many, and can take 50 times as
long as reading everything (nats-server issues 7014 and 7852). The costs below are microseconds for each
message, measured on nats-server 2.15.1 with 100,000 messages of 100 bytes on 20, 1,000 and 20,000 subjects.
They put the crossing point at 40 % of the messages for a filter of one subject, 37 % for one of 10 subjects,
4 % for one of 1,000 subjects, and at 6 % for two filters of one subject each, 2 % for ten. They come from one
measurement on a machine with other work, so take them for rough: a wrong choice costs time and no row.

In a stream in memory the server compares one message after the other, about as fast for any filters:
100,000 messages took 0.05 to 0.23 s for 1 to 50 filters and up to 5,000 subjects, and 0.4 s to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftenvelope.jetstream.api import natural
from liftenvelope.jetstream.stream_config import StorageType

if TYPE_CHECKING:
    from liftenvelope.bulk._jetstream.requests import JetStreamRequests
    from liftenvelope.jetstream.subject_filter import SubjectFilter

__all__ = ["MOST_SERVER_FILTERS", "Content", "ask_content", "choose_filters", "server_pays"]

#: Filters that one consumer gets at most. The server compares each with all others when the consumer is made:
#: 10 ms for 100 of them, 0.3 s for 1,000 and 3 s for 3,000 (nats-server 2.15.1).
MOST_SERVER_FILTERS: Final = 100
#: Microseconds to read a message, and for each of its bytes.
_READ: Final = 4.0
_READ_BYTE: Final = 0.002
#: Microseconds to search the next message that matches: for one filter and for several, by kind of consumer;
#: and more for each subject that matches.
_ONE: Final = (6.0, 0.1)
_SEVERAL: Final = (20.0, 20.0)
#: Microseconds to compare a message in memory, whether it matches or not.
_COMPARE: Final = 1.0


class Content(NamedTuple):
    """Content of a stream, and the part of it that matches a filter.

    Attributes:
        messages: Number of messages in the stream.
        bytes: Size of these messages.
        subjects: Number of messages on each subject that matches.
        in_memory: True if the stream is not on disk.
    """

    messages: int
    bytes: int
    subjects: dict[str, int]
    in_memory: bool = False


def choose_filters(source: JetStreamRequests, subjects: SubjectFilter) -> tuple[str, ...]:
    """Return the filters that the server should apply; none if the reader should filter.

    Args:
        source: The stream.
        subjects: The filter of the read.

    Raises:
        LiftEnvelopeError: As for :meth:`JetStreamRequests.ask`.
    """
    filters = subjects.filters
    if len(filters) > MOST_SERVER_FILTERS:
        return ()
    matching: dict[str, int] = {}
    for text in filters:
        found = ask_content(source, text, source.access.max_subjects)
        if found is None:
            return ()
        matching |= found.subjects
        if not server_pays(len(filters), found._replace(subjects=matching)):
            return ()
    return filters


def server_pays(filters: int, content: Content) -> bool:
    """Return True if a read is faster with the server's filter than with the reader's.

    Args:
        filters: Number of filters.
        content: Content of the stream.
    """
    read = _READ + _READ_BYTE * content.bytes / max(content.messages, 1)
    matching = sum(content.subjects.values())
    if content.in_memory:
        search = content.messages * _COMPARE
    else:
        base, each = _ONE if filters == 1 else _SEVERAL
        search = matching * (base + each * len(content.subjects))
    return search + matching * read < content.messages * read


def ask_content(source: JetStreamRequests, text: str, most: int) -> Content | None:
    """Return the content of a stream and its part on the subjects that match; None if those are too many.

    Args:
        source: The stream.
        text: Filter of the subjects.
        most: Number of subjects that may match.

    Raises:
        LiftEnvelopeError: As for :meth:`JetStreamRequests.ask`.
    """
    subjects = dict[str, int]()
    while True:
        request = {"subjects_filter": text, "offset": len(subjects)}
        found, total = source.ask(_content, f"STREAM.INFO.{source.stream}", request)
        before = len(subjects)
        subjects |= found.subjects
        if max(total, len(subjects)) > most:
            return None
        if len(subjects) >= total or len(subjects) == before:  # subjects may be removed meanwhile
            return found._replace(subjects=subjects)


def _content(answer: dict[str, Any]) -> tuple[Content, int]:
    """Return one page of the content, and the number of subjects on all pages."""
    state = answer["state"]
    page = {str(name): natural(count) for name, count in (state.get("subjects") or {}).items()}
    in_memory = answer["config"].get("storage") == StorageType.MEMORY
    found = Content(natural(state["messages"]), natural(state["bytes"]), page, in_memory)
    return found, natural(answer.get("total", 0))
