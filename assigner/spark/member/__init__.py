"""The group member behind a streaming query, on a thread of its own."""
