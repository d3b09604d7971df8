"""Made of client/health.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from liftenvelope.client.client import Client
    from liftenvelope.client.health import HealthStatus

__all__ = ["BlockingHealth"]


class BlockingHealth(Blocking):
    """Part of a client: asks every broker for its health."""

    _async: Client

    def check_health(
        self, *, service: str = "proto.API", timeout: float | None = None
    ) -> dict[str, HealthStatus]:
        """Check the health of every known broker, all at the same time.

        Args:
            service: Name of the gRPC service. Default: Liftbridge's API. Empty for the broker as a whole.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            Health of each broker, by its ``host:port``.

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
