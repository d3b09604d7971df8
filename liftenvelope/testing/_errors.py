"""Errors of the test servers."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError

__all__ = ["ServerStartError"]


class ServerStartError(LiftEnvelopeError):
    """A server can't be found, built or started. The message ends with the output of the program."""
