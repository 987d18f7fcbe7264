"""Leader election on any Store: a lease per instance, a key per term."""
