"""Benchmarks: one question in each file, its last result in ``results/``; see ``README.md``."""
