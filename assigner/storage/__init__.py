"""Ways to read and write the store that all drivers share: mirrors, batches, multi-key reads, the group index."""
