"""The servers of a command: contexts of the NATS command, connections, the end by a signal."""
