"""What is used of h2, imported in one place, which says what to install where it is missing."""

from __future__ import annotations

from liftenvelope.errors import MissingExtraError

try:
    from h2 import events
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.errors import ErrorCodes
    from h2.exceptions import ProtocolError
    from h2.settings import SettingCodes, Settings
except ImportError as _exc:
    raise MissingExtraError("gRPC needs h2: pip install 'liftenvelope[client]'") from _exc

__all__ = [
    "ErrorCodes",
    "H2Configuration",
    "H2Connection",
    "ProtocolError",
    "SettingCodes",
    "Settings",
    "events",
]
