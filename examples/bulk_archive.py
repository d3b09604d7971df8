"""Archive a Liftbridge stream in a folder of Parquet files that every run adds to."""

import tempfile
from pathlib import Path

import pyarrow.dataset as ds

import liftenvelope
from liftenvelope import bulk
from liftenvelope.testing import run_liftbridge


def show(progress: bulk.Progress) -> None:
    print(f"  {progress.done} of {progress.total} offsets")


def main() -> None:
    with run_liftbridge() as cluster, liftenvelope.connect_blocking(cluster.addresses) as client:
        client.create_stream("orders", "orders", partitions=2)
        with tempfile.TemporaryDirectory() as folder:
            for day in (1, 2):
                client.publish_many("orders", [(b"customer-%d" % i, b"day %d" % day) for i in range(500)])
                print(f"day {day}")
                done = bulk.to_parquet(client, "orders", folder, rotate_rows=200, progress=show)
                print(f"  {done.rows} rows in {len(done.files)} files more")

            names = sorted(path.name for path in Path(folder).iterdir())
            print(f"{len(names)} files, the first is {names[0]}")
            archived = ds.dataset(folder).to_table(columns=["partition", "offset", "value"])
            print(f"{archived.num_rows} rows in all, {bulk.count(client, 'orders')} in the stream")


if __name__ == "__main__":
    main()
