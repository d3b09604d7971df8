"""The measurements of benchmarks/sizing.py, with few messages. ``python -m benchmarks.sizing`` measures."""

from benchmarks.sizing import kinds, table


def test_every_kind_of_messages_is_written_and_read() -> None:
    head, _, *lines = table(0.0001, 1)
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        kind.what for kind in kinds(0.0001) for _ in range(2)
    ]
    assert {line.count("|") for line in lines} == {head.count("|")}
