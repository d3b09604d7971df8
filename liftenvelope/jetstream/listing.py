"""Paged listings of streams and consumers, as asynchronous iterators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

from liftenvelope.errors import ServerProtocolError
from liftenvelope.jetstream.api import Api, natural
from liftenvelope.jetstream.infos import ConsumerInfo, StreamInfo
from liftenvelope.jetstream.names import check_filter, check_stream_name

__all__ = ["consumer_infos", "consumer_names", "stream_infos", "stream_names"]

_Item = TypeVar("_Item")
_NO_SUBJECT: Final[Mapping[str, Any]] = {}


async def _pages(
    api: Api,
    subject: str,
    key: str,
    read: Callable[[Any], _Item],
    request: Mapping[str, Any],
    timeout: float | None,
    missing: list[str] | None = None,
) -> AsyncIterator[_Item]:
    """Iterate over all items of a listing. The next page is requested when the last one is used up.

    Raises:
        ServerProtocolError: The server repeats a page, or lists more items than ``max_listed``.
    """
    last: list[Any] = []

    def page(answer: dict[str, Any]) -> tuple[list[_Item], int]:
        nonlocal last
        found = answer.get(key) or []
        if found and found == last:
            raise ServerProtocolError(f"the server sent a page of {subject} twice, from {offset:,} on")
        last = found
        if missing is not None:
            known = set(missing)
            named = dict.fromkeys(map(str, answer.get("missing") or []))
            missing.extend(name for name in named if name not in known)
            api.check_listed(len(missing), f"missing items of {subject}")
        return [read(item) for item in found], natural(answer.get("total", 0))

    offset = 0
    while True:
        api.check_listed(offset, f"items of {subject}")
        items, total = await api.request_as(page, subject, {**request, "offset": offset}, timeout=timeout)
        for item in items:
            yield item
        offset += len(items)
        # An empty page ends the listing too: items may be deleted between two pages.
        if not items or offset >= total:
            return


def _selection(subject: str | None) -> Mapping[str, Any]:
    return _NO_SUBJECT if subject is None else {"subject": check_filter(subject)}


def stream_infos(
    api: Api,
    subject: str | None = None,
    timeout: float | None = None,
    *,
    missing: list[str] | None = None,
) -> AsyncIterator[StreamInfo]:
    """Iterate over all streams, or over those that record a subject.

    Args:
        api: Requests.
        subject: Subject to filter by. Default: all streams.
        timeout: Seconds to wait for each page.
        missing: Gets the names of streams that did not answer the server that made the list.
    """
    return _pages(api, "STREAM.LIST", "streams", StreamInfo.from_json, _selection(subject), timeout, missing)


def stream_names(api: Api, subject: str | None = None, timeout: float | None = None) -> AsyncIterator[str]:
    """Iterate over the names of all streams, or of those that record a subject."""
    return _pages(api, "STREAM.NAMES", "streams", str, _selection(subject), timeout)


def consumer_infos(api: Api, stream: str, timeout: float | None = None) -> AsyncIterator[ConsumerInfo]:
    """Iterate over the consumers of a stream."""
    subject = f"CONSUMER.LIST.{check_stream_name(stream)}"
    return _pages(api, subject, "consumers", ConsumerInfo.from_json, _NO_SUBJECT, timeout)


def consumer_names(api: Api, stream: str, timeout: float | None = None) -> AsyncIterator[str]:
    """Iterate over the names of the consumers of a stream."""
    return _pages(api, f"CONSUMER.NAMES.{check_stream_name(stream)}", "consumers", str, _NO_SUBJECT, timeout)
