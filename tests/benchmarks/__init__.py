"""Ratios and operating characteristics, each ``python -m tests.benchmarks.NAME``."""
