"""Ways to spread partitions over members."""
