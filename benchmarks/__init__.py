"""One command, one table, peers in the same run: `python -m benchmarks attend`."""
