"""Parts of an HTTP server of a command: the source of health and metrics, and further pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from aiohttp.web import Application
    from prometheus_client.metrics_core import Metric as Exposed

    from liftenvelope.gateway.limits import Limits

__all__ = ["NO_PAGES", "Monitored", "Pages"]

#: Applications of aiohttp by the path below which they are served, such as ``/monitor``.
Pages: TypeAlias = "Mapping[str, Application]"
NO_PAGES: Final[Pages] = MappingProxyType({})


class Monitored(Protocol):
    """Source of health and metrics: a gateway, several workers, or another program."""

    @property
    def limits(self) -> Limits:
        """Limits on clients, which apply to the HTTP server."""

    def look(self) -> tuple[bool, str]:
        """Return whether clients can be served, and the text that tells why not, with an end of line."""

    async def families(self) -> list[Exposed]:
        """Return the metrics with their present values, those of the process included."""
