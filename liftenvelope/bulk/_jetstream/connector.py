"""Connections to the servers of a JetStream stream, and to those that the cluster names."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from liftenvelope._deadlines import Deadline
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.errors import CallTimeoutError, TransportError
from liftenvelope.rpc.address import Address, parse_address

if TYPE_CHECKING:
    from liftenvelope.bulk.access import Target

__all__ = ["Connector"]


class Connector:
    """Connects to the servers in turns. Any thread may call :meth:`connect`.

    Args:
        target: Servers and connection options.
    """

    def __init__(self, target: Target) -> None:
        self._access = target.access
        # Servers that the cluster names are added to the logins.
        self._logins = dict(target.logins)
        self._target = replace(target, logins=self._logins)
        self._addresses = list(target.addresses)
        # By address that a server named: name in the certificate of that server.
        self._names: dict[Address, str] = {}
        self._turns = itertools.count()

    @property
    def first_address(self) -> Address:
        """Address of the first server."""
        return self._addresses[0]

    def connect(self, check: Callable[[], None]) -> NatsSocket:
        """Connect to the next server that can be reached.

        The wait for a greeting ends early with an error that ``check`` raises.

        Once a server has used TLS, every later connection must use TLS as well, so that credentials sent over
        TLS are never sent over plain TCP.

        Raises:
            TransportError: No server could be reached, or none within ``reconnect_wait`` seconds.
        """
        error: TransportError | CallTimeoutError | None = None
        deadline = Deadline(self._access.reconnect_wait)
        for _ in range(len(self._addresses)):
            address = self._addresses[next(self._turns) % len(self._addresses)]
            try:
                found = self._open(address, check)
            except (TransportError, CallTimeoutError) as exc:
                error = exc
                if deadline.is_over:  # servers may advertise many addresses that don't answer
                    break
            else:
                self._learn(found)
                return found
        assert error is not None
        raise TransportError(str(error)) from error

    def resume(self) -> NatsSocket | None:
        """Return a connection that an earlier read has kept; None if there is none that can be used."""
        idle = self._access.idle
        while idle is not None and (kept := idle.take()) is not None:
            if isinstance(kept, NatsSocket) and kept.is_usable():
                self._learn(kept)
                return kept
            kept.close()
        return None

    def _open(self, address: Address, check: Callable[[], None]) -> NatsSocket:
        """Connect to a server.

        Servers name each other by IP addresses, and often have certificates for host names alone. So the
        certificate may also be for the host of the server that named this one, as in nats.go and nats-py.
        """
        try:
            return NatsSocket(address, self._target, check=check)
        except TransportError as exc:
            name = self._names.get(address, address.host)
            if name == address.host or not isinstance(exc.__cause__, ssl.SSLCertVerificationError):
                raise
            return NatsSocket(address, self._target, name, check)

    def _learn(self, link: NatsSocket) -> None:
        """Remember the servers that a server names, and whether it uses TLS.

        As they are of its cluster, they get its login.
        """
        if link.is_secure:
            self._target = replace(self._target, secure=True)
        known = {*self._addresses}
        found: list[Address] = [parse_address(address) for address in link.other_addresses]
        fresh = [address for address in dict.fromkeys(found) if address not in known]
        fresh = fresh[: max(self._access.max_brokers - len(known), 0)]
        self._logins.update(dict.fromkeys(fresh, self._target.access_to(link.address)))
        self._names.update(dict.fromkeys(fresh, link.server_name))
        self._addresses += fresh
