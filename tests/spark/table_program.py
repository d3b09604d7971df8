"""A program that keeps a table of a stream with the example's functions, and may kill itself in a batch.

Run by test_tables. The last argument: ``2 before`` or ``2 after`` the commit of that batch, or ``never``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_tables.py"
TABLE = "shop.orders"

Write = Callable[[Any, int], None]


def names() -> dict[str, Any]:
    """Return what the example defines."""
    return runpy.run_path(str(EXAMPLE))


def catalog_in(folder: Path) -> SqlCatalog:
    """Return the catalogue of the Iceberg table, which is made if there is none."""
    found = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    found.create_namespace_if_not_exists("shop")
    return found


def write_into(make: str, folder: Path) -> Write:
    """Return the example's function for a table in a folder."""
    write: Write
    if make == "delta":
        write = names()["into_delta"](str(folder / "delta"))
    else:
        write = names()["into_iceberg"](catalog_in(folder), TABLE)
    return write


def interrupted(write: Write, moment: str, interrupt: Callable[[], None]) -> Write:
    """Return a function that writes batches and is interrupted before or after that of one batch."""
    number, _, place = moment.partition(" ")

    def work(frame: Any, batch: int) -> None:
        mine = place if str(batch) == number else ""
        if mine == "before":
            interrupt()
        write(frame, batch)
        if mine == "after":
            interrupt()

    return work


def main(make: str, servers: str, folder: str, moment: str) -> None:
    example = names()
    write = interrupted(write_into(make, Path(folder)), moment, lambda: os.killpg(0, signal.SIGKILL))
    example["keep"](example["start_spark"](), servers, f"{folder}/checkpoint", write)


if __name__ == "__main__":
    main(*sys.argv[1:])
