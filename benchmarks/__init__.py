"""Benchmarks: one command prints one table, with peers in the same run: `python -m benchmarks
attend`.
"""
