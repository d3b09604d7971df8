"""Query a stream with SQL in DuckDB, and write the result of a query into a stream."""

import duckdb

import liftenvelope
from liftenvelope import bulk
from liftenvelope.testing import run_liftbridge


def main() -> None:
    with run_liftbridge() as cluster, liftenvelope.connect_blocking(cluster.addresses) as client:
        client.create_stream("readings", "readings")
        client.create_stream("means", "means")
        values = [(b"attic" if number % 3 else b"hall", b"%d" % (15 + number % 8)) for number in range(1000)]
        client.publish_many("readings", values, partition=0)

        with duckdb.connect() as db:
            # DuckDB pulls batches as it needs them, so the whole stream is never in memory.
            db.register("readings", bulk.read(client, "readings"))
            means = db.sql(
                "SELECT decode(key) AS key, round(avg(decode(value)::INT), 2)::VARCHAR AS value "
                "FROM readings GROUP BY 1 ORDER BY 1"
            ).to_arrow_table()
        print(f"{bulk.write(client, 'means', means).acked} rows stored")
        print(bulk.read(client, "means", columns=["key", "value"]).read_all().to_pylist())


if __name__ == "__main__":
    main()
