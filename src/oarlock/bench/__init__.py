"""Benchmarks: what their results look like and how two of them compare. The scripts themselves lie in benchmarks/."""
