"""The readable twins as modules.

``from liftenvelope._native import env`` gives the loaded backend, usually the extension: a test would
compare the extension with itself.
"""

from __future__ import annotations

from importlib import import_module

acks, batch, bulk, direct, env, frames, gate, jet, put = (
    import_module(f"liftenvelope._native.{piece}")
    for piece in ("acks", "batch", "bulk", "direct", "env", "frames", "gate", "jet", "put")
)
