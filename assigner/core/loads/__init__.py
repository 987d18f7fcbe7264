"""Loads of partitions: samples in, weights for strategies out."""
