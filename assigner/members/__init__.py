"""Consumers at this instance: registration, their streams, their acks and their load reports."""
