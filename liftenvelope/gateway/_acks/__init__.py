"""Acks for publishers of raw NATS messages."""
