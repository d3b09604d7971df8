"""The readable twins as modules.

``from liftenvelope._native import env`` gives the loaded backend, usually the extension: a test would
compare the extension with itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["acks", "batch", "bulk", "direct", "env", "frames", "gate", "handout", "jet", "put"]

if TYPE_CHECKING:
    import liftenvelope._native.acks as acks
    import liftenvelope._native.batch as batch
    import liftenvelope._native.bulk as bulk
    import liftenvelope._native.direct as direct
    import liftenvelope._native.env as env
    import liftenvelope._native.frames as frames
    import liftenvelope._native.gate as gate
    import liftenvelope._native.handout as handout
    import liftenvelope._native.jet as jet
    import liftenvelope._native.put as put
else:
    acks, batch, bulk, direct, env, frames, gate, handout, jet, put = (
        import_module(f"liftenvelope._native.{piece}") for piece in __all__
    )
