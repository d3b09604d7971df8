"""Requests to the brokers of Liftbridge, and range reads of its streams."""
