"""Partitions as streams of JetStream: stores, inspects and reads them."""
