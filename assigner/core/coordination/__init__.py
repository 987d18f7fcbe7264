"""The leader's machine: store events and time in, writes and the next wake-up out."""
