"""Made of client/health.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import BlockingCore

if TYPE_CHECKING:
    from liftenvelope.client.health import HealthMixin, HealthStatus

__all__ = ["BlockingHealth"]


class BlockingHealth(BlockingCore):
    """The part of the client that asks brokers how they are."""

    _async: HealthMixin

    def check_health(
        self, *, service: str = "proto.API", timeout: float | None = None
    ) -> dict[str, HealthStatus]:
        """Ask every known broker whether it serves.

        Args:
            service: Which service: that of Liftbridge's API, or empty for the broker as a whole.
            timeout: Seconds for all of them, who are asked at the same time; default: the client's.

        Returns:
            What each said, by its ``host:port``.

        Raises:
            TransportError: The client is closed.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         return list(client.check_health().values())
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            [<HealthStatus.SERVING: 1>]
        """
        return self._portal.call(self._async.check_health(service=service, timeout=timeout))
