"""Tests of the monitor's page in Chromium."""
