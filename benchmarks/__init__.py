"""Benchmarks, each figure beside its peer in the same run: ``python -m benchmarks``."""
