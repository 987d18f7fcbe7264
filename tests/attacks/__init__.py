"""Attacks on a running service from outside: what a few hostile peers may cost the consumers that do their work."""
