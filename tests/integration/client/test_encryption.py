"""Streams that a real Liftbridge server encrypts at rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import liftenvelope
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge

VALUES = [b"plain text number %d" % number for number in range(50)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiftbridgeCluster]:
    with run_liftbridge(env={"LIFTBRIDGE_ENCRYPTION_KEY": "0123456789abcdef0123456789abcdef"}) as cluster:
        yield cluster


def data_of(cluster: LiftbridgeCluster, stream: str) -> bytes:
    """All that the server has on disk of a stream."""
    (folder,) = cluster._folder.glob(f"*/data/**/streams/{stream}")
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("encryption", [True, False])
async def test_messages_are_read_back_and_encrypted_on_disk(
    cluster: LiftbridgeCluster, encryption: bool
) -> None:
    name = f"secret-{encryption}".lower()
    async with liftenvelope.connect(cluster.addresses) as client:
        await client.create_stream(name, name, encryption=encryption)
        assert (await client.publish_many(name, VALUES)).acked == len(VALUES)
        assert await client.publish(name, b"the last one", key=b"key") is not None
        async with client.subscribe(name, start="earliest", stop="latest") as messages:
            assert [message.value async for message in messages] == [*VALUES, b"the last one"]
    assert (VALUES[7] in data_of(cluster, name)) is not encryption


async def test_encryption_without_a_key_is_refused() -> None:
    with run_liftbridge() as cluster:
        async with liftenvelope.connect(cluster.addresses) as client:
            with pytest.raises(RpcError, match="encryption handler") as info:
                await client.create_stream("secret", "secret", encryption=True)
    assert info.value.code == StatusCode.FAILED_PRECONDITION
