"""Benchmarks of liftenvelope.spark. ``make bench-spark`` measures; ``make test-spark`` runs each once."""
