"""Primitives for the event loop that the standard library and anyio lack."""
