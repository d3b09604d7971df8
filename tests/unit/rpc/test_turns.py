"""Division of the event loop's turns among connections, by a clock that advances one step per reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from liftenvelope.rpc._turns import PieceOutcome, Turns

#: A piece may take 0.3 ms: it ends when the clock was read four times since its start.
STEP = 0.0001


class Clock:
    def __init__(self, step: float = STEP) -> None:
        self.now = 0.0
        self._step = step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


class Connection:
    """Counts as a connection with a number of frames, each of which takes a step of the clock."""

    def __init__(self, name: str, frames: int, log: list[str], *, is_useful: bool = True) -> None:
        self._name, self.frames, self._log, self._is_useful = name, frames, log, is_useful
        self.used = (0, 0.0, 0.0)

    def work(self, is_over: Callable[[], bool]) -> PieceOutcome:
        self._log.append(self._name)
        while self.frames:
            self.frames -= 1
            if is_over():
                break
        if not self.frames:
            return PieceOutcome.DONE
        return PieceOutcome.USEFUL if self._is_useful else PieceOutcome.USELESS


async def turns_of(log: list[str], until: Callable[[], bool]) -> list[list[str]]:
    """Split a log by turns of the event loop, from the next turn on, until a condition holds."""
    turns = []
    while not until():
        log.clear()
        await asyncio.sleep(0)
        turns.append(log.copy())
    return turns


def at_least(count: int) -> Callable[[], bool]:
    """Return a condition that holds at its ``count``-th look."""
    left = iter(range(count))
    return lambda: next(left, None) is None


async def test_connections_that_arrive_in_one_turn_share_its_budget() -> None:
    log = list[str]()
    turns, connections = Turns(Clock()), [Connection(str(n), 1, log) for n in range(20)]
    for connection in connections:
        turns.arrived(connection)
    # A piece of one frame takes two steps, so two of them use up the budget.
    assert log == ["0", "1"]
    later = await turns_of(log, lambda: not any(connection.frames for connection in connections))
    assert [len(turn) for turn in later] == [2] * 9
    assert [name for turn in later for name in turn] == [str(n) for n in range(2, 20)]


async def test_connection_that_used_up_its_piece_waits_behind_those_that_did_not() -> None:
    log = list[str]()
    turns, heavy, light = Turns(Clock()), Connection("heavy", 8, log), Connection("light", 1, log)
    turns.arrived(heavy)
    turns.arrived(light)
    assert log == ["heavy"]
    (turn,) = await turns_of(log, lambda: not light.frames)
    assert turn == ["light", "heavy"]


async def test_connection_that_used_up_its_piece_is_served_however_many_arrive() -> None:
    log = list[str]()
    turns, heavy = Turns(Clock()), Connection("heavy", 40, log)
    turns.arrived(heavy)
    for _ in range(100):
        turns.arrived(Connection("light", 1, log))
    served = await turns_of(log, lambda: not heavy.frames)
    assert all("heavy" in pair[0] + pair[1] for pair in zip(served[::2], served[1::2], strict=False))
    assert all(turn.count("heavy") <= 1 and len(turn) <= 2 for turn in served)


class Client:
    """A client whose every arrival is one piece of work, which takes a number of seconds.

    Args:
        log: Gets its name whenever it is served.
        pause: Turns of the event loop from a piece to the arrival of the next. None: nothing more arrives.
    """

    def __init__(
        self, name: str, seconds: float, log: list[str], clock: Clock, turns: Turns, pause: int | None = None
    ) -> None:
        self._name, self._seconds, self._log, self._clock, self._turns = name, seconds, log, clock, turns
        self._pause = pause
        self.used = (0, 0.0, 0.0)

    def work(self, is_over: Callable[[], bool]) -> PieceOutcome:
        self._log.append(self._name)
        self._clock.now += self._seconds
        if self._pause is not None:
            self.arrive_after(self._pause)
        return PieceOutcome.DONE

    def arrive_after(self, pause: int) -> None:
        arrive = partial(self.arrive_after, pause - 1) if pause else partial(self._turns.arrived, self)
        asyncio.get_running_loop().call_soon(arrive)

    async def wait(self) -> int:
        """Arrive, and wait to be served; return the number of pieces of others until then."""
        before = len(self._log)
        self._turns.arrived(self)
        await run_until(lambda: self._name in self._log[before:])
        return self._log.index(self._name, before) - before


async def run_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_client_that_sends_little_does_not_wait_behind_those_that_send_much() -> None:
    log, clock = list[str](), Clock(step=0.0)
    turns = Turns(clock)
    for number in range(20):
        Client(str(number), 0.0001, log, clock, turns, pause=0).arrive_after(0)
    await run_until(lambda: len(log) > 100)
    for _ in range(10):
        # Twenty wait, but the piece of one of them at most comes first.
        assert await Client("little", 0.00001, log, clock, turns).wait() <= 1


async def test_turns_are_short_while_a_client_that_sends_little_is_active() -> None:
    log, clock = list[str](), Clock(step=0.0)
    turns = Turns(clock)
    for number in range(20):
        Client(str(number), 0.00004, log, clock, turns, pause=0).arrive_after(0)
    await run_until(lambda: len(log) > 200)
    # 0.3 ms, then 0.1 ms, then 0.3 ms again.
    assert {len(turn) for turn in await turns_of(log, at_least(5))} == {8}
    turns.arrived(Client("little", 0.00001, log, clock, turns))
    await turns_of(log, lambda: "little" in log)
    assert {len(turn) for turn in await turns_of(log, at_least(5))} == {3}
    clock.now += 0.01
    await turns_of(log, at_least(1))
    assert {len(turn) for turn in await turns_of(log, at_least(5))} == {8}


async def test_client_that_has_sent_much_is_served_however_many_send_little() -> None:
    log, clock = list[str](), Clock(step=0.0)
    turns = Turns(clock)
    much = Client("much", 0.0001, log, clock, turns)
    while len(log) < 300:
        turns.arrived(much)
        await asyncio.sleep(0)
    began = clock.now
    for number in range(20):
        Client(str(number), 0.0001, log, clock, turns, pause=0).arrive_after(0)
    await run_until(lambda: len(log) > 320)
    turns.arrived(much)
    assert log[-1] != "much"
    await run_until(lambda: log.count("much") == 301)
    # It waits behind the others for more than their pieces, and for two periods at most.
    assert 0.005 < clock.now - began < 0.11


async def test_clients_that_send_little_go_first_across_periods() -> None:
    log, clock = list[str](), Clock(step=0.0)
    turns = Turns(clock)
    for number in range(20):
        Client(str(number), 0.0001, log, clock, turns, pause=0).arrive_after(0)
    await run_until(lambda: len(log) > 100)
    little = Client("little", 0.00001, log, clock, turns)
    waits = []
    while clock.now < 1:
        waits.append(await little.wait())
        await turns_of([], at_least(12))
    assert max(waits) <= 1


async def test_connections_with_useless_frames_share_one_piece_at_a_time() -> None:
    log = list[str]()
    turns = Turns(Clock())
    floods = [Connection(str(n), 100, log, is_useful=False) for n in range(5)]
    for flood in floods:
        turns.arrived(flood)
    served = await turns_of(log, lambda: not any(flood.frames for flood in floods))
    # At first, all are light. After that, they take turns, and all are served to the end.
    pieces = [name for turn in served[5:] for name in turn]
    assert max(map(len, served[5:])) == 1
    assert all(sorted(pieces[start : start + 5]) == [*"01234"] for start in range(0, 40, 5))


async def test_useless_frames_do_not_delay_others() -> None:
    log = list[str]()
    turns = Turns(Clock())
    flood, useful = Connection("flood", 4_000, log, is_useful=False), Connection("useful", 400, log)
    turns.arrived(flood)
    turns.arrived(useful)
    served = await turns_of(log, lambda: not useful.frames)
    # The flood is served at most once per turn, beside the other connection.
    assert all(turn.count("useful") == 1 and turn.count("flood") <= 1 for turn in served)
    assert flood.frames


async def test_tasks_of_ended_calls_are_cancelled_a_few_per_turn() -> None:
    turns, ended = Turns(Clock()), list[int]()

    async def serve(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    tasks = [asyncio.create_task(serve(number)) for number in range(100)]
    await asyncio.sleep(0)
    turns.cancel(tasks[:90])
    turns.cancel(tasks[90:])
    before = 0
    while len(ended) < 100:
        await asyncio.sleep(0)
        assert len(ended) - before <= 16
        before = len(ended)
    assert ended == list(range(100))


async def test_tasks_that_wait_to_be_cancelled_can_be_cancelled_at_once() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    turns = Turns(Clock())
    tasks = [asyncio.create_task(wait()) for _ in range(100)]
    turns.cancel(tasks)
    left = turns.cancel_all()
    assert len(left) == 92
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
