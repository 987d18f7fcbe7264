"""Solver for partitions of unequal weight."""
