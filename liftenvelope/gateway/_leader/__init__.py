"""Work of a gateway for the partitions that it leads: acks, compaction and pauses."""
