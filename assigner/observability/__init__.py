"""Metrics of the service, and the log of ownership events."""
