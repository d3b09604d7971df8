"""Brokers of a cluster: connections, metadata, routing."""
