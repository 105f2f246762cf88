"""Faults of the network: slow, lossy, narrow, silent links, half-open connections, strangers."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest
from test_sim_network import PORT, Scene, attempt

from dledger.chaos.machine import Settings, Trace, World

FIXED = Settings(latency_ns=(100_000, 100_001), split_chance=0.0)
DEAD_MS = 3000


def answer(scene: Scene, data: bytes) -> None:
    scene.inside("server", lambda: scene.accepted[0].transport.write(data))


def watch(scene: Scene, *sides: asyncio.Transport) -> None:
    """Set the options that peers of a group set (dledger/peers/links.py)."""
    for side in sides or (scene.client.transport, scene.accepted[0].transport):
        sock = side.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((4, 1), (5, 1), (6, 3), (18, DEAD_MS)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def arrival_s(scene: Scene, data: bytes = b"x", limit_s: float = 100.0) -> float:
    """Send data and wait until all of it has arrived. Returns how long that took."""
    wanted = len(scene.accepted[0].data) + len(data)
    before = scene.world.time
    scene.send(data)
    scene.world.run_until(lambda: len(scene.accepted[0].data) >= wanted, limit_s)
    return scene.world.time - before


# -- links -------------------------------------------------------------------------------------------


def test_a_delay_holds_for_what_is_sent_from_now_on_in_its_directions() -> None:
    scene = Scene(settings=FIXED)
    network = scene.world.network
    assert arrival_s(scene) < 0.000_2
    network.delay("client", "server", 0.25)
    assert arrival_s(scene) == pytest.approx(0.25, abs=0.001)
    network.delay("client", "server", None)
    assert arrival_s(scene) < 0.000_2
    network.delay("server", "client", 0.5, directed=True)
    assert arrival_s(scene) < 0.000_2
    answer(scene, b"slow")
    scene.world.run_for(0.49)
    assert scene.client.data == b""
    scene.world.run_for(0.02)
    assert scene.client.data == b"slow"
    assert scene.world.faults == {"link_delay": 2}
    with pytest.raises(ValueError, match="latency"):
        network.delay("client", "server", 40_000)


def test_jitter_spreads_and_keeps_the_order_of_a_connection() -> None:
    scene = Scene(settings=FIXED)
    scene.world.network.delay("client", "server", (0.01, 0.05))
    taken = [arrival_s(scene) for _ in range(30)]
    assert 0.01 <= min(taken) < 0.02 and 0.04 < max(taken) <= 0.0502
    for number in range(100):
        scene.send(bytes([number]))
    scene.world.run_for(0.1)
    assert scene.accepted[0].data[30:] == bytes(range(100))


def test_lost_packets_come_later_and_hold_up_the_rest() -> None:
    scene = Scene(settings=FIXED)
    scene.world.network.loss("client", "server", 0.5)
    taken = [arrival_s(scene) for _ in range(60)]
    quick = sum(time < 0.000_2 for time in taken)
    assert 15 < quick < 45 and 0.2 < max(taken) < 60
    for number in range(200):
        scene.send(bytes([number]))
    scene.world.run_for(60)
    assert scene.accepted[0].data[60:] == bytes(range(200))
    scene.world.network.loss("client", "server", 0)
    assert arrival_s(scene) < 0.000_2
    assert scene.world.faults == {"link_loss": 1}
    with pytest.raises(ValueError, match="loss"):
        scene.world.network.loss("client", "server", 1)


def test_a_narrow_link_takes_its_time_for_all_connections_together() -> None:
    scene = Scene(settings=FIXED)
    scene.world.network.bandwidth("client", "server", 100_000)
    assert arrival_s(scene, bytes(50_000)) == pytest.approx(0.5, abs=0.01)
    assert arrival_s(scene) < 0.001
    before, sent = scene.world.time, len(scene.accepted[0].data) + 100_000
    for _ in range(10):
        scene.send(bytes(10_000))
    scene.world.run_until(lambda: len(scene.accepted[0].data) == sent, 10)
    assert scene.world.time - before == pytest.approx(1.0, abs=0.01)
    other = Scene(settings=FIXED)
    other.world.network.bandwidth("client", "server", 100_000)
    assert arrival_s(other, bytes(400_000)) == pytest.approx(4, abs=0.1)  # more than the window
    other.world.network.bandwidth("client", "server", None)
    assert arrival_s(other, bytes(400_000)) < 0.01
    assert other.world.faults == {"link_bandwidth": 1}


def test_mending_ends_delay_loss_and_narrowness_at_once() -> None:
    scene = Scene(settings=FIXED)
    network = scene.world.network
    network.delay("client", "server", 1.0)
    network.loss("client", "server", 0.9)
    network.bandwidth("client", "server", 10)
    network.mend()
    assert arrival_s(scene, bytes(1000)) < 0.000_2


def test_what_waited_for_a_narrow_link_does_not_go_on_at_its_pace() -> None:
    """Regression: a peer was behind for 10 s after the end of all faults (profile bad-links, seed
    272402795)."""
    scene = Scene(settings=FIXED)
    network = scene.world.network
    network.bandwidth("client", "server", 1000)
    pieces = [bytes([number]) * 3000 for number in range(10)]
    for piece in pieces:
        scene.send(piece)
    scene.world.run_for(5)
    assert len(scene.accepted[0].data) == 3000
    network.bandwidth("client", "server", None)
    scene.send(b"last")
    scene.world.run_for(0.001)
    assert scene.accepted[0].data == b"".join(pieces) + b"last"
    scene.send(b"and on")
    scene.world.run_for(30)
    assert scene.accepted[0].data.endswith(b"lastand on")


def test_what_is_sent_after_a_narrow_link_was_wide_again_takes_its_latency() -> None:
    """The packet does not arrive early: nothing arrives at the time planned for the packet that was
    hurried."""
    scene = Scene(settings=FIXED)
    world, network = scene.world, scene.world.network
    network.bandwidth("client", "server", 1000)
    scene.send(bytes(3000))
    world.run_for(1)
    network.bandwidth("client", "server", None)
    world.run_for(1)
    assert len(scene.accepted[0].data) == 3000
    network.delay("client", "server", 2.0)
    scene.send(b"late")  # due two seconds from now; the packet before was due one second from now
    world.run_for(1.5)
    assert len(scene.accepted[0].data) == 3000
    world.run_for(1)
    assert scene.accepted[0].data.endswith(b"late")


def test_a_silent_link_accepts_and_never_answers() -> None:
    scene = Scene(settings=FIXED)
    world = scene.world
    watch(scene)
    world.network.silence("server", "client", directed=True)
    scene.send(b"hello")
    answer(scene, b"held")
    world.run_for(60)
    assert (scene.accepted[0].data, scene.client.data) == (b"hello", b"")
    assert scene.client.end is None  # the kernels are well
    world.network.silence("client", "server")
    assert attempt(world, "server")[0] == "connected"
    world.heal()
    world.run_for(0.5)
    assert scene.client.data == b"held"
    assert world.faults == {"silence": 2}


def test_connections_are_made_through_a_silent_link() -> None:
    scene = Scene(settings=FIXED)
    world = scene.world
    probe = world.node(f"probe{len(world.nodes) + 1}")  # the one that `attempt` uses
    world.network.silence(probe.name, "server")
    assert attempt(world, "server")[0] == "connected"
    assert len(scene.accepted) == 2
    world.run_for(10)
    assert scene.accepted[1].end is None  # the end of the probe's process is not told
    world.heal()
    world.run_for(1)
    assert scene.accepted[1].end == "NoneType"


# -- connections -------------------------------------------------------------------------------------


def test_a_reset_tells_both_sides() -> None:
    scene = Scene()
    scene.world.network.reset("server")
    scene.world.run_for(0.001)
    assert (scene.client.end, scene.accepted[0].end) == ("ConnectionResetError", "ConnectionResetError")
    assert attempt(scene.world, "server")[0] == "connected"
    assert scene.world.faults == {"reset": 1}
    scene.world.network.reset("server")
    scene.world.kill("server")
    scene.world.network.reset("server")


def test_a_forgotten_connection_is_half_open_until_the_other_side_sends() -> None:
    scene = Scene()
    world = scene.world
    world.network.forget("server", "client")
    world.run_for(60)
    assert (scene.client.end, scene.accepted[0].end) == (None, "TimeoutError")
    scene.send(b"anybody?")
    world.run_for(0.01)
    assert scene.client.end == "ConnectionResetError" and scene.accepted[0].data == b""
    assert world.faults == {"half_open": 1}


def test_keepalive_finds_a_half_open_connection() -> None:
    scene = Scene()
    watch(scene)
    scene.world.network.forget("server")
    scene.world.run_for(1.1)
    assert scene.client.end == "ConnectionResetError"


def test_a_stranded_connection_is_silent_for_ever_and_new_ones_work() -> None:
    scene = Scene()
    world = scene.world
    world.network.strand("client", "server")
    scene.send(b"lost")
    answer(scene, b"lost too")
    world.heal()
    world.run_for(600)
    assert (scene.client.data, scene.accepted[0].data) == (b"", b"")
    assert scene.client.end is None and scene.accepted[0].end is None
    assert attempt(world, "server")[0] == "connected"


@pytest.mark.parametrize("fault", ["strand", "partition", "power"])
def test_without_an_answer_a_watched_connection_ends(fault: str) -> None:
    scene = Scene()
    world = scene.world
    watch(scene)
    world.run_for(20)
    assert scene.client.end is None and scene.accepted[0].end is None  # idle is not dead
    if fault == "strand":
        world.network.strand("client")
    elif fault == "partition":
        world.partition("client", "server")
    else:
        world.power_cut("server")
    world.run_for(1.9)
    assert scene.client.end is None
    world.run_for(2.2)
    assert scene.client.end == "TimeoutError"
    assert scene.accepted[0].end == (None if fault == "power" else "TimeoutError")
    world.heal()
    world.run_for(10)
    assert scene.accepted[0].data == b""


def test_one_way_cuts_end_the_side_that_waits_for_an_answer() -> None:
    for source in ("client", "server"):
        scene = Scene()
        watch(scene)
        scene.world.partition(source, "server" if source == "client" else "client", directed=True)
        scene.world.run_for(0.5)
        scene.send(b"x")
        scene.world.run_for(3.6)
        assert scene.client.end == "TimeoutError"
        assert scene.accepted[0].data == (b"" if source == "client" else b"x")
        scene.world.run_for(4)
        assert scene.accepted[0].end in ("TimeoutError", "ConnectionResetError", "NoneType")


def test_a_stopped_peer_keeps_its_connection_until_its_buffer_is_full() -> None:
    scene = Scene(settings=Settings(window=10_000))
    world = scene.world
    watch(scene)
    world.stop("server")
    scene.send(bytes(9_000))
    world.run_for(60)
    assert scene.client.end is None
    scene.send(bytes(9_000))
    world.run_for(2.5)
    assert scene.client.end is None
    world.run_for(2.5)
    assert scene.client.end == "TimeoutError"
    world.cont("server")
    world.run_for(5)
    assert len(scene.accepted[0].data) == 10_000


def test_a_narrow_link_that_is_always_full_keeps_its_connection() -> None:
    """TCP_USER_TIMEOUT is for data that does not move: Linux counts from the last acknowledgement."""
    scene = Scene(settings=Settings(window=10_000))
    watch(scene)
    scene.world.network.bandwidth("client", "server", 8_000)
    assert arrival_s(scene, bytes(100_000)) == pytest.approx(12.5, abs=0.5)
    assert scene.client.end is None and scene.accepted[0].end is None


def test_a_short_partition_is_survived() -> None:
    scene = Scene()
    watch(scene)
    for _ in range(5):
        scene.world.partition("client", "server")
        scene.send(b"x")
        scene.world.run_for(1.5)
        scene.world.heal()
        scene.world.run_for(1.5)
    assert scene.client.end is None and scene.accepted[0].data == b"xxxxx"


def test_a_packet_that_is_lost_again_and_again_ends_a_watched_connection() -> None:
    """The connection ends as with TCP_USER_TIMEOUT: on a healthy link the next retransmission may be many
    seconds away."""
    scene = Scene()
    world = scene.world
    watch(scene)
    world.network.loss("client", "server", 0.95)
    scene.send(b"x")
    world.heal()
    world.run_for(2.5)
    assert scene.client.end is None and scene.accepted[0].data == b""
    world.run_for(2.5)
    assert scene.client.end == "TimeoutError"


def test_keepalive_alone_has_the_usual_patience() -> None:
    scene = Scene()
    scene.client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    scene.world.power_cut("server")
    scene.world.run_for(7200 + 9 * 75 - 2)
    assert scene.client.end is None
    scene.world.run_for(4)
    assert scene.client.end == "TimeoutError"


def test_what_a_stalled_step_reads_makes_room_for_the_peer_only_afterwards() -> None:
    scene = Scene(settings=Settings(window=10_000, split_chance=0.0))
    world = scene.world
    scene.inside("server", lambda: scene.accepted[0].transport.pause_reading())
    scene.send(bytes(10_000))
    world.run_for(1)
    process = world.nodes["server"].process
    assert process is not None
    process.loop.call_soon(process.loop.stall, 2_000_000_000)
    scene.accepted[0].transport.resume_reading()  # in the same turn
    world.run_for(1)
    scene.send(bytes(5_000))
    assert scene.client.transport.get_write_buffer_size() == 5_000
    world.run_for(1.1)
    assert scene.client.transport.get_write_buffer_size() == 0


# -- strangers ---------------------------------------------------------------------------------------


def test_a_stranger_sends_garbage_and_goes() -> None:
    scene = Scene()
    world = scene.world
    world.network.garbage("server", PORT, b"\xff\0what?")
    world.network.garbage("server", PORT)
    world.run_for(0.5)
    got = sorted(peer.data for peer in scene.accepted[1:])
    assert b"\xff\0what?" in got and len(got) == 2 and min(map(len, got)) > 0
    world.run_for(1)
    assert [peer.end for peer in scene.accepted] == [None, "NoneType", "NoneType"]
    assert list(world.nodes) == ["server", "client"]
    assert world.faults == {"garbage": 2}
    world.kill("server")
    world.network.garbage("server", PORT)  # refused: nobody minds
    world.run_for(5)


def test_a_crowd_of_strangers_stays_for_a_while() -> None:
    scene = Scene()
    scene.world.network.crowd("server", PORT, 300, hold_s=2.0)
    scene.world.run_for(1.5)
    assert len(scene.accepted) == 301
    scene.world.run_for(2)
    assert sum(peer.end is None for peer in scene.accepted) == 1
    assert scene.world.faults == {"crowd": 1}


def test_a_seed_decides_all_of_it() -> None:
    def run(seed: int) -> list[str]:
        trace = Trace()
        scene = Scene(seed)
        world: World = scene.world
        world.trace = trace
        watch(scene)
        world.network.loss("client", "server", 0.3)
        world.network.delay("client", "server", (0.001, 0.02))
        world.network.garbage("server", PORT)
        for step in (
            partial(world.network.silence, "server", "client"),
            world.heal,
            partial(world.network.forget, "client"),
        ):
            for _ in range(5):
                if scene.client.end is None:
                    scene.send(bytes(3000))
            step()
            world.run_for(1)
        lines = list(trace.lines)
        world.dispose()
        return lines

    assert run(1) == run(1) != run(2)
