"""Read a stream into a pandas DataFrame, and write a DataFrame into a stream."""

import pandas as pd

import liftenvelope
from liftenvelope import bulk
from liftenvelope.testing import run_liftbridge


def main() -> None:
    with run_liftbridge() as cluster, liftenvelope.connect_blocking(cluster.addresses) as client:
        client.create_stream("readings", "readings", partitions=2)
        frame = pd.DataFrame({"key": ["hall", "attic", "hall"], "value": ["20", "17", "22"]})
        print(f"{bulk.write(client, 'readings', frame).acked} rows stored")

        read = bulk.read(client, "readings").read_pandas()
        read["degrees"] = read["value"].str.decode("utf-8").astype(int)
        read["key"] = read["key"].str.decode("utf-8")
        print(read.groupby("key")["degrees"].mean().to_dict())
        print(read.dtypes[["offset", "timestamp", "subject"]].astype(str).to_dict())


if __name__ == "__main__":
    main()
