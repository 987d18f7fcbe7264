"""Random histories of a whole group from a seed, two kinds written independently, and the tests that run them."""
