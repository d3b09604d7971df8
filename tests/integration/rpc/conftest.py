"""The gRPC server that the channels are tested with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.rpc.test_blocking import Service, serve


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def address(service: Service) -> Iterator[str]:
    with serve(service) as address:
        yield address
