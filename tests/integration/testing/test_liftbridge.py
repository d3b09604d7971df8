"""run_liftbridge, with real servers."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nats
import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import (
    FaultProxy,
    GatewayCluster,
    LiftbridgeAdmin,
    LiftbridgeCluster,
    ServerStartError,
    run_liftbridge,
    run_nats_server,
)
from liftenvelope.testing._binaries import LIFTBRIDGE_VARIABLE, find_liftbridge
from tests.integration.conftest import until, wait_until


def publish(address: str, stream: str, value: bytes, *, all_replicas: bool = False) -> api_pb2.Ack:
    policy = api_pb2.ALL if all_replicas else api_pb2.LEADER
    request = api_pb2.PublishRequest(stream=stream, value=value, ackPolicy=policy)
    with BlockingChannel(address) as channel:
        answer = channel.unary("/proto.API/Publish", request.SerializeToString(), timeout=60.0)
    return api_pb2.PublishResponse.FromString(answer).ack


def test_streams(liftbridge_server: LiftbridgeCluster) -> None:
    cluster = liftbridge_server
    cluster.create_stream("testing.streams", subject="subject", partitions=2, retention_max_messages=100)
    with pytest.raises(RpcError) as info:
        cluster.create_stream("testing.streams", subject="subject")
    assert info.value.code == StatusCode.ALREADY_EXISTS
    offsets = [publish(cluster.addresses[0], "testing.streams", b"%d" % n).offset for n in range(10)]
    assert offsets == list(range(10))
    messages = cluster.read("testing.streams", start=3, count=7)
    assert [message.value for message in messages] == [b"%d" % n for n in range(3, 10)]
    assert cluster.partition_metadata("testing.streams").newestOffset == 9
    assert cluster.partition_metadata("testing.streams", 1).newestOffset == -1
    cluster.delete_stream("testing.streams")
    with pytest.raises(RpcError) as info:
        cluster.delete_stream("testing.streams")
    assert info.value.code == StatusCode.NOT_FOUND
    with pytest.raises(RpcError) as info:
        cluster.partition_metadata("testing.streams")
    assert info.value.code == StatusCode.NOT_FOUND


def test_read_says_how_much_there_was(liftbridge_server: LiftbridgeCluster) -> None:
    liftbridge_server.create_stream("testing.read")
    publish(liftbridge_server.addresses[0], "testing.read", b"only")
    assert liftbridge_server.read("testing.read", count=0) == []
    with pytest.raises(RpcError, match="after 1 of 2 messages") as info:
        liftbridge_server.read("testing.read", count=2, timeout=15)
    assert info.value.code == StatusCode.DEADLINE_EXCEEDED


def test_readonly_and_pause(liftbridge_server: LiftbridgeCluster) -> None:
    admin = LiftbridgeAdmin(liftbridge_server.addresses)
    admin.create_stream("testing.state", optimistic_concurrency=True, min_isr=1, compact_enabled=True)
    admin.set_stream_readonly("testing.state")
    assert admin.partition_metadata("testing.state").readonly
    admin.set_stream_readonly("testing.state", False)
    assert not admin.partition_metadata("testing.state").readonly
    admin.pause_stream("testing.state")
    with pytest.raises(RpcError) as info:
        admin.partition_metadata("testing.state", timeout=15)
    assert info.value.code == StatusCode.FAILED_PRECONDITION


def test_a_refusal_is_not_forgotten_when_the_time_is_up(liftbridge_server: LiftbridgeCluster) -> None:
    liftbridge_server.create_stream("testing.refusal")
    liftbridge_server.pause_stream("testing.refusal")
    with FaultProxy(liftbridge_server.addresses[0]) as proxy:

        def stall() -> None:
            # The first attempt has been refused when there is a second one.
            while proxy.connections < 2:
                time.sleep(0.01)
            proxy.stall()

        stalling = threading.Thread(target=stall)
        stalling.start()
        with pytest.raises(RpcError) as info:
            LiftbridgeAdmin([proxy.address]).partition_metadata("testing.refusal", timeout=15)
        stalling.join()
    assert info.value.code == StatusCode.FAILED_PRECONDITION


def test_change_whose_answer_is_lost_succeeds_at_the_second_attempt(
    liftbridge_server: LiftbridgeCluster,
) -> None:
    def shows(there: bool) -> bool:
        with BlockingChannel(liftbridge_server.addresses[0]) as channel:
            answer = channel.unary("/proto.API/FetchMetadata", b"", timeout=60.0)
        streams = api_pb2.FetchMetadataResponse.FromString(answer).streamMetadata
        return there == ("testing.lost" in [stream.name for stream in streams])

    with FaultProxy(liftbridge_server.addresses[0]) as proxy:
        admin = LiftbridgeAdmin([proxy.address])
        for change, there in ((admin.create_stream, True), (admin.delete_stream, False)):
            proxy.stall("to_client")
            with ThreadPoolExecutor() as pool:
                changed = pool.submit(change, "testing.lost")
                wait_until(partial(shows, there))
                proxy.cut()
                proxy.resume()
                changed.result()


def test_version_is_that_of_the_program(liftbridge_server: LiftbridgeCluster) -> None:
    assert liftbridge_server.version == find_liftbridge().version
    assert liftbridge_server.version


def test_repr_of_a_node_names_it_and_its_place(gateway_server: GatewayCluster) -> None:
    (node,) = gateway_server.nodes
    assert repr(node) == f"<GatewayNode node1 on {node.address}, running>"


def test_version_of_a_gateway_is_that_of_the_package(gateway_server: GatewayCluster) -> None:
    assert gateway_server.version == liftenvelope.__version__


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_keeps_port_and_data(how: str) -> None:
    with run_liftbridge() as cluster:
        cluster.create_stream("orders")
        address = cluster.addresses[0]
        publish(address, "orders", b"one")
        (node,) = cluster.nodes
        pid = node.pid
        ended = node.stop() if how == "stop" else node.kill()
        assert ended == (0 if how == "stop" else -signal.SIGKILL)
        assert node.pid is None
        cluster.start()
        assert cluster.addresses == [address]
        assert cluster.is_running
        assert node.pid != pid
        # After a kill the first message is invisible until another one comes.
        assert publish(address, "orders", b"two").offset == 1
        assert [message.value for message in cluster.read("orders", count=2)] == [b"one", b"two"]
        assert cluster.nats is not None
        assert cluster.nats.is_running
    assert not node.is_running
    assert cluster.nats.pid is None
    assert node.log()


async def test_async_use_and_configuration() -> None:
    async with run_liftbridge(config={"clustering": {"replication.max.bytes": 2000}}) as cluster:
        cluster.create_stream("small")
        with pytest.raises(RpcError):
            publish(cluster.addresses[0], "small", bytes(3000))
        assert publish(cluster.addresses[0], "small", bytes(1000)).offset == 0


def test_two_clusters_on_one_nats() -> None:
    with (
        run_nats_server() as nats,
        run_liftbridge(nats_server=nats) as first,
        run_liftbridge(nats_url=nats.url) as second,
    ):
        assert first.nats is nats
        assert second.nats is None
        assert first.nats_url == second.nats_url == nats.url
        first.create_stream("mine")
        with pytest.raises(RpcError):
            second.partition_metadata("mine")
        first.close()
        assert nats.is_running


def test_liftbridge_stops_by_itself_when_nats_has_gone() -> None:
    with run_liftbridge() as cluster:
        assert cluster.nats is not None
        cluster.nats.kill()
        # Not killed after the seconds that a server has to stop.
        assert cluster.nodes[0].stop() == 0


def test_three_nodes_survive_their_leader() -> None:
    with run_liftbridge(nodes=3) as cluster:
        assert len(set(cluster.addresses)) == 3
        cluster.create_stream("orders", replication_factor=3, timeout=60)
        metadata = cluster.partition_metadata("orders")
        assert sorted(metadata.replicas) == [node.id for node in cluster.nodes]
        leader = next(node for node in cluster.nodes if node.id == metadata.leader)
        assert publish(leader.address, "orders", b"one", all_replicas=True).offset == 0
        leader.kill()
        deadline = time.monotonic() + 60
        while cluster.partition_metadata("orders", timeout=60.0).leader == leader.id:
            assert time.monotonic() < deadline
        cluster.create_stream("more", timeout=60)
        leader.start()
        assert leader.is_running
        assert [message.value for message in cluster.read("orders", count=1)] == [b"one"]
        cluster.stop()
        assert not any(node.is_running for node in cluster.nodes)
        cluster.start()
        assert [message.value for message in cluster.read("orders", count=1)] == [b"one"]


def test_failed_start_shows_the_log() -> None:
    cluster = run_liftbridge(config={"no.such.key": 1})
    with pytest.raises(ServerStartError, match=r"no\.such\.key"), cluster:
        pass
    assert not cluster.is_running
    assert cluster.nats is not None
    assert not cluster.nats.is_running


def test_no_nats() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerStartError, match=r"NATS|nats"), run_liftbridge(nats_url=url):
            pass


def test_server_that_is_not_ready_in_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands in for a server that hangs, and ends at SIGINT even if a shell runs the tests in the background.
    hang = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); time.sleep(600)"
    program = tmp_path / "liftbridge"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then exec {find_liftbridge().path} "$@"; fi\n'
        f'exec {sys.executable} -c "{hang}"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv(LIFTBRIDGE_VARIABLE, str(program))
    with pytest.raises(ServerStartError, match="not ready in time"), run_liftbridge(start_timeout=0.5):
        pass


def test_taken_port_is_not_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        real = sys.modules["liftenvelope.testing._cluster"].free_port
        ports = iter([listener.getsockname()[1]])
        monkeypatch.setattr("liftenvelope.testing._cluster.free_port", lambda: next(ports, None) or real())
        with run_liftbridge() as cluster:
            assert cluster.nodes[0].port != listener.getsockname()[1]


def test_build_command_prints_the_path() -> None:
    command = [sys.executable, "-m", "liftenvelope.testing", "build"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(find_liftbridge().path)


@pytest.mark.parametrize(
    "panic",
    [
        "failed to start Raft node: bootstrap only works on new clusters",
        "failed to connect to NATS: nats: timeout",
    ],
)
@pytest.mark.parametrize("times", [1, 5])
def test_a_machine_that_is_too_busy_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, panic: str
) -> None:
    # Stands in for the real server's panics, which take a machine that starves it for ten seconds.
    # Liftbridge 1.9.0 without NATS ends like this: the text is the panic's, the rest of the log was seen.
    trace = (
        "\\ngoroutine 1 [running]:\\nmain.main()\\n"
        "\\tgithub.com/liftbridge-io/liftbridge@v1.9.0/main.go:25 +0x10b\\n"
    )
    real = find_liftbridge().path
    program = tmp_path / "liftbridge"
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then exec {real} "$@"; fi\n'
        f"echo start >> {tmp_path}/starts\n"
        f"if [ $(wc -l < {tmp_path}/starts) -le {times} ]; then\n"
        '  echo \'time="2026-11-22 11:47:56" level=info msg="Shutting down..."\' >&2\n'
        f"  printf 'panic: {panic}\\n{trace}' >&2; exit 2\n"
        "fi\n"
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv(LIFTBRIDGE_VARIABLE, str(program))
    if times > 3:
        with pytest.raises(ServerStartError, match=panic), run_liftbridge():
            pass
        assert (tmp_path / "starts").read_text().count("start") == 3
    else:
        with run_liftbridge() as cluster:
            cluster.create_stream("orders")


async def kill_a_server_with_a_message() -> None:
    async with run_liftbridge() as cluster, await nats.connect(cluster.nats_url) as nc:
        await asyncio.to_thread(cluster.create_stream, "orders")
        # Liftbridge 1.9 takes the header's length, 255 bytes, on trust.
        await nc.publish("orders", bytes.fromhex("b90e43b400ff0000"))
        await until(lambda: not cluster.is_running)
        raise RuntimeError("on purpose")


async def test_error_of_the_block_says_how_a_server_ended() -> None:
    with pytest.raises(RuntimeError, match="on purpose") as info:
        await kill_a_server_with_a_message()
    (note,) = info.value.__notes__
    assert note.startswith("Liftbridge (node1) ended with status 2. Its log:")
    assert "panic: runtime error: slice bounds out of range" in note
    assert len(note.splitlines()) <= 41


def test_servers_that_were_stopped_or_killed_have_not_failed() -> None:
    with run_liftbridge() as cluster:
        assert cluster.nats is not None
        cluster.stop()
        cluster.start()
        assert cluster.failures() == []
        cluster.kill()
        cluster.nats.kill()
        assert cluster.failures() == []
