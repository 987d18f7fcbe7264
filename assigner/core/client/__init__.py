"""The consumer's machine: messages and events in, calls of the handler out."""
