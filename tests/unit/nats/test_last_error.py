"""The last error of a connection, as a part of the text of another one."""

from __future__ import annotations

from typing import Any

import nats.errors
import pytest

from liftenvelope.nats.link import last_error_of


class Closed:
    """A connection with a last error."""

    def __init__(self, error: Exception | None) -> None:
        self.last_error = error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        (TimeoutError(), ""),
        (nats.errors.Error("nats: user authentication expired"), "user authentication expired"),
        (nats.errors.Error('nats: permissions violation for publish to "a"'), ""),
    ],
)
def test_only_an_error_with_a_text_is_told(error: Exception | None, text: str) -> None:
    connection: Any = Closed(error)
    assert last_error_of(connection) == (f" (its last error: nats: {text})" if text else "")
