"""What a change would move, worked out on a sketch of the group without touching it."""
