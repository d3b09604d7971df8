"""Every attack, by its victim."""

from __future__ import annotations

from typing import Final

from tests.hostile.grpc_attacks import GRPC
from tests.hostile.http2_attacks import HTTP2
from tests.hostile.other_attacks import NATS, TLS

__all__ = ["GATEWAY"]

GATEWAY: Final = (*HTTP2, *GRPC, *NATS, *TLS)
assert len({row.name for row in GATEWAY}) == len(GATEWAY)
