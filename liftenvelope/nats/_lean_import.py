"""Imports nats-py without aiohttp, which it imports at once and needs for WebSockets alone.

aiohttp takes 0.2 to 0.3 s of processor time in each command, each gateway and each process of Spark: a
quarter to a third of what they take to start. Importing this module imports nats-py with a stand-in for
aiohttp, which imports aiohttp when it is used first. If nats-py or aiohttp is already imported, or aiohttp
is not installed, nothing changes.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from types import ModuleType

_AIOHTTP = "aiohttp"
_lock = Lock()


class _StandIn(ModuleType):
    """Has the attributes of a module, which it imports when the first of them is read."""

    def __getattr__(self, name: str) -> object:
        self.give_way()
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)  # nats-py reads one for each WebSocket frame, and this takes 6 us
        return found

    def give_way(self) -> None:
        """Leave the place in ``sys.modules`` to the module itself."""
        with _lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]


def _import_nats() -> None:
    if _AIOHTTP in sys.modules or find_spec(_AIOHTTP) is None:
        return
    stand_in = _StandIn(_AIOHTTP)
    try:
        # Unless another thread has begun to import aiohttp meanwhile.
        if sys.modules.setdefault(_AIOHTTP, stand_in) is stand_in:
            import_module("nats")
    finally:
        stand_in.give_way()


_import_nats()
