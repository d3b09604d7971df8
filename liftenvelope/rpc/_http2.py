"""Imports the names used from h2 and hpack, with an error that says what to install if they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._checks import require

if not TYPE_CHECKING:
    for _module in ("hpack", "h2"):
        require(_module, "client")

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.table import HeaderTable

__all__ = [
    "Decoder",
    "Encoder",
    "ErrorCodes",
    "H2Configuration",
    "H2Connection",
    "HeaderTable",
    "HeaderTuple",
    "NeverIndexedHeaderTuple",
    "ProtocolError",
    "SettingCodes",
    "Settings",
    "events",
]
