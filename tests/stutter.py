"""Finds tests that depend on the speed of the machine: ``make stutter``, or pytest with ``-p tests.stutter``.

The main thread of each test stands still once, for ``STUTTER`` seconds, somewhere in its first 50 ms.
The default, 3.6 s, is longer than an attempt of most calls. On a busy machine a process may get no processor
for so long. A test that fails then has too little time for something that must happen, or takes a repeated
attempt for a mistake. The run prints its seed. With that in ``STUTTER_SEED``, each test stands still at the
same moment again.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Generator
from typing import Final

import pytest

_SECONDS: Final = float(os.environ.get("STUTTER", "3.6"))
#: The processes of pytest-xdist get it with the environment.
_SEED: Final = os.environ.setdefault("STUTTER_SEED", str(random.randrange(10**6)))
_FIRST: Final = 0.05


def _stand_still(*_: object) -> None:
    time.sleep(_SECONDS)


def pytest_report_header() -> str:
    return f"each test stands still for {_SECONDS} s, with STUTTER_SEED={_SEED}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    # Not SIGALRM, which pytest-timeout uses.
    signal.signal(signal.SIGUSR2, _stand_still)
    moment = random.Random(f"{_SEED} {item.nodeid}").uniform(0, _FIRST)
    timer = threading.Timer(moment, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR2))
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
        timer.join()
