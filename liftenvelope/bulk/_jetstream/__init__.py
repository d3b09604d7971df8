"""Connections to JetStream, and range reads of its streams."""
