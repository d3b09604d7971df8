"""Pulls: their options, the state machine that decides them, single ones and continuous ones."""
