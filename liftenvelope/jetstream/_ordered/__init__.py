"""Ordered reads, by consumers that live for a part of the read."""
