"""The handoff state machine: what a handoff needs next, and how it gets there."""
