"""Memory of the columns that compiled readers fill."""

from __future__ import annotations

from liftenvelope._native import _fastbulk


def test_column_with_room_for_one_more_long_value_is_allocated_once() -> None:
    sizes: list[int] = []

    def allocate(size: int) -> bytearray:
        sizes.append(size)
        return bytearray(size)

    rows = _fastbulk.NatsRows(("value",), 0, 100, 1_000_000, 2**20, allocate)
    rows.follow(7, 0, -1)
    value = bytes(300_000)
    data = b"".join(
        b"MSG s 7 $JS.ACK.S.c.1.%d.%d.1700000000000000000.9 300000\r\n%b\r\n" % (i, i, value)
        for i in range(1, 6)
    )
    state, _ = rows.feed(data, 0, len(data))
    assert (state, rows.rows) == (_fastbulk.FULL, 4)
    assert len([size for size in sizes if size >= len(value)]) == 1
