"""Reads streams as batches: positions, iteration, payload columns and dead letters."""
