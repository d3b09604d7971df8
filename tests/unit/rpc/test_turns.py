"""Division of the event loop's turns among connections, by a clock that advances one step per reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftenvelope.rpc._turns import PieceOutcome, Turns

#: A piece may take 0.3 ms: it ends when the clock was read four times since its start.
STEP = 0.0001


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += STEP
        return self.now


class Connection:
    """Counts as a connection with a number of frames, each of which takes a step of the clock."""

    def __init__(self, name: str, frames: int, log: list[str], *, is_useful: bool = True) -> None:
        self._name, self.frames, self._log, self._is_useful = name, frames, log, is_useful

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
