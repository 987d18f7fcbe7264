"""The gRPC transport: connections, TLS, limits, fair turns and the status of a call."""
