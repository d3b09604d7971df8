"""Read a stream into a polars DataFrame, and write a DataFrame into a stream."""

import polars as pl

import liftenvelope
from liftenvelope import bulk
from liftenvelope.testing import run_liftbridge


def main() -> None:
    with run_liftbridge() as cluster, liftenvelope.connect_blocking(cluster.addresses) as client:
        client.create_stream("readings", "readings", partitions=2)
        frame = pl.DataFrame({"key": ["hall", "attic", "hall"], "value": ["20", "17", "22"]})
        print(f"{bulk.write(client, 'readings', frame).acked} rows stored")

        # polars has no maps: leave the headers out, or convert them to lists of names and values.
        read = pl.DataFrame(bulk.read(client, "readings", columns=["key", "value", "offset", "timestamp"]))
        degrees = pl.col("value").cast(pl.String).cast(pl.Int64).alias("degrees")
        means = read.select(pl.col("key").cast(pl.String), degrees).group_by("key").mean().sort("key")
        print(means.to_dicts())


if __name__ == "__main__":
    main()
