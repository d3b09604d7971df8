"""Default time-outs of a minute for the clients that tests make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

import liftenvelope
from liftenvelope.group import GroupClient
from liftenvelope.group.calls import GroupCalls
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream.api import Api
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.rpc.aio import Channel

#: By function, the options that bound a wait for a server. A gateway and a coordinator are not among them:
#: these repeat a request that was lost, and would do so a minute later.
_BOUNDED: Final[dict[Callable[..., Any], tuple[str, ...]]] = {
    liftenvelope.connect: ("timeout", "ack_wait", "connect_timeout"),
    AckInbox.__init__: ("timeout",),
    Api.__init__: ("timeout",),
    Channel.connect.__func__: ("connect_timeout",),  # type: ignore[attr-defined]
    EnvelopePublisher.__init__: ("timeout",),
    GroupCalls.__init__: ("timeout",),
    GroupClient.__init__: ("timeout",),
    JetStream.__init__: ("timeout",),
}


@pytest.fixture(autouse=True, scope="package")
def patient_clients() -> Iterator[None]:
    """Make clients wait for a minute by default: on a loaded machine a server may need more than seconds.

    A test of what happens when time is up gives the client a timeout of its own, and so does one that repeats
    a request that is not answered.
    """
    with pytest.MonkeyPatch.context() as patch:
        for function, names in _BOUNDED.items():
            defaults = function.__kwdefaults__
            assert defaults is not None
            assert defaults.keys() >= set(names)
            for name in names:
                patch.setitem(defaults, name, 60.0)
        yield


@contextmanager
def short_requests() -> Iterator[None]:
    """Let requests to JetStream end after 5 s again: in a cluster without a leader nobody answers them.

    The tests of clusters ask again.
    """
    with pytest.MonkeyPatch.context() as patch:
        for function in (Api.__init__, JetStream.__init__):
            assert function.__kwdefaults__ is not None
            patch.setitem(function.__kwdefaults__, "timeout", 5.0)
        yield
