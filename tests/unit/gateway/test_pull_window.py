"""Readers adapt the bytes that they request from JetStream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.gateway._partitions.pull_window import PullBudget, PullWindow

KIB = 1 << 10
MIB = 1 << 20
#: Total of a budget whose shared amount is 100.
SHARING_100 = 175


def take_all(window: PullWindow, amount: int, now: float) -> None:
    """Receive and take so many bytes."""
    window.pulled(amount)
    window.arrived(amount, 100)
    window.taken(amount, now)


def test_window_begins_small_and_counts_what_is_asked_for_and_held() -> None:
    window = PullWindow(0.0)
    assert window.wanted == 128 * KIB
    window.pulled(128 * KIB)
    window.arrived(100 * KIB, 1_000)
    assert (window.asked, window.held, window.wanted) == (28 * KIB, 100 * KIB, 0)
    window.ended(128 * KIB, 28 * KIB, expired=False)
    window.taken(20 * KIB, 0.0)
    assert (window.asked, window.wanted) == (0, 0)
    window.taken(20 * KIB, 0.0)
    assert window.wanted == 68 * KIB


def test_quick_reader_gets_a_larger_window_up_to_a_limit() -> None:
    window = PullWindow(0.0)
    sizes = [window.size]
    for step in range(100):
        take_all(window, MIB, step * 0.01)
        sizes.append(window.size)
    # What a gRPC library takes for a reader that takes nothing makes no difference.
    assert sizes[7] == 128 * KIB
    assert sorted(set(sizes)) == [128 * KIB, 512 * KIB, 2 * MIB]
    assert sizes[-1] == 2 * MIB


def test_slow_and_idle_readers_get_a_small_window_again() -> None:
    window = PullWindow(0.0)
    for step in range(16):
        take_all(window, MIB, step * 0.01)
    assert window.size == 2 * MIB
    for step in range(8):
        take_all(window, MIB, 10.0 + step * 10.0)
    assert window.size == 512 * KIB
    window.pulled(MIB)
    window.ended(MIB, MIB, expired=True)
    assert (window.size, window.asked) == (128 * KIB, 0)


def test_window_has_room_for_two_of_the_largest_messages() -> None:
    window = PullWindow(0.0)
    window.pulled(64 * KIB)
    window.ended(64 * KIB, 64 * KIB, expired=False)  # not one message fitted
    assert (window.least, window.size) == (256 * KIB, 512 * KIB)
    take_all(window, 256 * KIB, 0.0)
    window.arrived(3 * MIB, 3 * MIB)
    window.taken(3 * MIB, 0.0)
    assert window.size == 6 * MIB
    for _ in range(2):  # then only small ones come
        take_all(window, 8 * MIB, 100.0)
    assert window.size <= 2 * MIB


def test_shared_amount_is_given_up_to_the_total_and_no_further() -> None:
    budget = PullBudget(700 * KIB)
    shared, small = 400 * KIB, 300 * KIB
    assert budget.take(shared, shared) == shared
    assert budget.take(1, 1) == 0
    budget.release(1)
    assert budget.take(2, 2) == 0
    assert budget.take(1, 1) == 1
    # Readers that wait ask for the rest together.
    budget.readers = 10
    assert budget.small * budget.readers == small


def test_small_amounts_shrink_with_the_number_of_readers() -> None:
    budget = PullBudget()
    small = []
    for readers in (0, 1, 192, 384, 3_072, 100_000):
        budget.readers = readers
        small.append(budget.small)
    assert small == [64 * KIB, 64 * KIB, 64 * KIB, 32 * KIB, 4 * KIB, 4 * KIB]


def test_shared_amount_is_given_in_the_order_of_asking() -> None:
    budget, given_to = PullBudget(SHARING_100), list[tuple[str, int]]()
    assert budget.take(10, 70) == 70
    assert budget.take(40, 60) == 0
    budget.wait(40, lambda amount: given_to.append(("a", amount)))
    budget.wait(20, lambda amount: given_to.append(("b", amount)))
    assert budget.take(1, 10) == 0  # others wait
    budget.release(5)
    assert given_to == []
    budget.release(5)
    assert given_to == [("a", 40)]
    budget.release(60)
    assert given_to == [("a", 40), ("b", 20)]
    assert (budget.used, budget.take(1, 100)) == (60, 40)


def test_any_number_of_readers_may_put_back_what_they_are_given() -> None:
    budget, given = PullBudget(SHARING_100), 0

    def put_back(amount: int) -> None:
        nonlocal given
        given += 1
        budget.release(amount)  # the connection is lost

    assert budget.take(100, 100) == 100
    for _ in range(5_000):
        budget.wait(60, put_back)
    budget.release(100)
    assert (given, budget.used) == (5_000, 0)


def test_message_larger_than_the_shared_amount_waits_until_all_of_it_is_free() -> None:
    budget, given_to = PullBudget(SHARING_100), list[int]()
    assert budget.take(10, 10) == 10
    budget.wait(500, given_to.append)
    assert given_to == []
    budget.release(10)
    assert given_to == [500]
    budget.release(500)
    assert budget.take(500, 500) == 500


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), max_size=40), st.data())
def test_budget_is_never_exceeded_and_nobody_waits_for_ever(
    wishes: list[tuple[int, int]], data: st.DataObject
) -> None:
    budget, taken, waiting = PullBudget(SHARING_100), list[int](), 0

    def give(amount: int) -> None:
        nonlocal waiting
        waiting -= 1
        taken.append(amount)

    for least, more in wishes:
        if amount := budget.take(least, least + more):
            taken.append(amount)
        else:
            waiting += 1
            budget.wait(least, give)
        assert budget.used == sum(taken)
        assert budget.used <= 100 or len(taken) == 1
        while taken and bool(data.draw(st.booleans())):
            budget.release(taken.pop(0))
    while taken:
        budget.release(taken.pop(0))
    assert (budget.used, waiting) == (0, 0)
