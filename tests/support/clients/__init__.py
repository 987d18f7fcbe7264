"""Consumers for tests: recording handlers, clients on streams, on threads and in processes of their own."""
