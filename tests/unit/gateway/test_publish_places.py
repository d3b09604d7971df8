"""Places for messages without an ack: how many a connection gets, and who gets the next one."""

from __future__ import annotations

import asyncio
import random

from liftenvelope.gateway._clients.publish_places import PublishPlaces


class Publisher:
    """A connection whose messages stay without an ack until :meth:`ack`."""

    def __init__(self, places: PublishPlaces, name: str) -> None:
        self._places = places
        self._name = name
        self.sent: list[asyncio.Future[int]] = []
        self.tasks: list[asyncio.Task[asyncio.Future[int]]] = []

    async def publish(self, count: int = 1) -> int:
        """Publish messages; return the number of all that were sent."""
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._places.send(self._name, self._send)))
        await settled()
        return len(self.sent)

    async def _send(self) -> asyncio.Future[int]:
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]

    async def ack(self, count: int = 1) -> None:
        """Ack the oldest messages."""
        for future in [future for future in self.sent if not future.done()][:count]:
            future.set_result(0)
        await settled()

    async def end(self) -> None:
        """Cancel the messages that wait, and ack the others."""
        for task in self.tasks:
            task.cancel()
        await self.ack(len(self.sent))


async def settled() -> None:
    """Let all tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_connection_gets_as_many_places_as_it_leaves_free() -> None:
    places = PublishPlaces(100, 1)
    one, two, three = (Publisher(places, name) for name in ("one", "two", "three"))
    assert await one.publish(200) == 50
    assert await two.publish(200) == 25
    assert await three.publish(200) == 12
    assert places.free == 13
    for publisher in (one, two, three):
        await publisher.end()
    assert (places.free, places._shares, places._queues) == (100, {}, {})


async def test_all_places_go_to_those_that_wait_once_others_end() -> None:
    places = PublishPlaces(90, 1)
    one, two = Publisher(places, "one"), Publisher(places, "two")
    await one.publish(200)
    await two.publish(200)
    await one.end()
    await two.ack()
    assert len(two.sent) == 46
    await two.end()
    assert places.free == 90


async def test_messages_of_a_connection_are_sent_in_the_order_of_their_calls() -> None:
    places, order = PublishPlaces(2, 1), list[int]()

    async def send(number: int) -> asyncio.Future[int]:
        order.append(number)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, number)
        return future

    async def publish(number: int) -> int:
        return await (await places.send("one", lambda: send(number)))

    assert await asyncio.gather(*(publish(number) for number in range(50))) == list(range(50))
    assert order == list(range(50))


async def test_single_place_is_handed_to_every_connection_in_turn() -> None:
    places = PublishPlaces(1, 1)
    publishers = [Publisher(places, f"{number}") for number in range(5)]
    for publisher in publishers:
        await publisher.publish(2)
    for _ in range(2 * len(publishers)):
        for publisher in publishers:
            await publisher.ack()
    assert [len(publisher.sent) for publisher in publishers] == [2] * 5
    assert (places.free, places._shares, places._queues) == (1, {}, {})


async def test_place_of_a_message_that_was_not_sent_is_free_again() -> None:
    places = PublishPlaces(1, 1)

    async def fail() -> asyncio.Future[int]:
        raise ConnectionError

    (outcome,) = await asyncio.gather(places.send("one", fail), return_exceptions=True)
    assert isinstance(outcome, ConnectionError)
    assert (places.free, places._shares) == (1, {})


async def one_place_for_three() -> tuple[PublishPlaces, list[Publisher]]:
    """A single place, and three connections: the first has it, the others wait in their order."""
    places = PublishPlaces(1, 1)
    publishers = [Publisher(places, name) for name in ("one", "two", "three")]
    for publisher in publishers:
        await publisher.publish()
    return places, publishers


async def check_that_only_the_third_was_sent(places: PublishPlaces, two: Publisher, three: Publisher) -> None:
    assert (len(two.sent), len(three.sent)) == (0, 1)
    await three.end()
    assert (places.free, places._shares, places._queues) == (1, {}, {})


async def test_place_given_to_a_call_that_is_cancelled_at_once_is_passed_on() -> None:
    places, (one, two, three) = await one_place_for_three()
    one.sent[0].set_result(0)
    await asyncio.sleep(0)  # the place is given to the second, whose task has not run yet
    two.tasks[0].cancel()
    await settled()
    await check_that_only_the_third_was_sent(places, two, three)


async def test_place_is_offered_past_a_connection_whose_message_was_cancelled() -> None:
    places, (one, two, three) = await one_place_for_three()
    two.tasks[0].cancel()
    await settled()
    await one.ack()
    await check_that_only_the_third_was_sent(places, two, three)


async def test_place_is_offered_past_a_message_that_is_just_being_cancelled() -> None:
    places, (one, two, three) = await one_place_for_three()
    one.sent[0].set_result(0)
    two.tasks[0].cancel()  # both are noticed in the next pass of the event loop
    await settled()
    await check_that_only_the_third_was_sent(places, two, three)


async def test_place_is_offered_past_a_connection_that_may_not_take_it() -> None:
    places = PublishPlaces(2, 1)
    one, two, three = (Publisher(places, name) for name in ("one", "two", "three"))
    await one.publish()
    await two.publish()
    await one.publish()  # waits: it has a place, and none is free
    await three.publish()
    await two.ack()
    assert (len(one.sent), len(three.sent)) == (1, 1)
    for publisher in (one, two, three):
        await publisher.end()
    assert (places.free, places._shares, places._queues) == (2, {}, {})


async def test_connections_that_come_one_after_the_other_all_find_a_place() -> None:
    places = PublishPlaces(1_000, 10)
    publishers = [Publisher(places, f"{number}") for number in range(17)]
    sent = [await publisher.publish(600) for publisher in publishers]
    assert sent[0] == 495
    assert min(sent) == 1
    for publisher in publishers:
        await publisher.end()
    assert (places.free, places._shares, places._queues) == (1_000, {}, {})


async def test_no_connection_that_may_take_a_place_waits() -> None:
    chance = random.Random(7)
    places = PublishPlaces(7, 1)
    publishers = [Publisher(places, f"{number}") for number in range(6)]
    for _ in range(1_000):
        publisher = chance.choice(publishers)
        match chance.randrange(3):
            case 0:
                await publisher.publish(chance.randrange(4))
            case 1:
                await publisher.ack(chance.randrange(3))
            case _:
                if publisher.tasks:
                    chance.choice(publisher.tasks).cancel()
                    await settled()
        waiting = [share.held for share in places._shares.values() if share.waiting]
        assert all(held >= places.free for held in waiting)
    for publisher in publishers:
        await publisher.end()
    assert (places.free, places._shares, places._queues) == (7, {}, {})


async def test_every_connection_finds_a_place_however_many_there_may_be() -> None:
    places = PublishPlaces(1_000, 50)
    publishers = [Publisher(places, f"{number}") for number in range(50)]
    assert min([await publisher.publish(600) for publisher in publishers]) == 1
    assert places.free
    for publisher in publishers:
        await publisher.end()
    assert PublishPlaces(1_000, 5_000)._reserve == 100
