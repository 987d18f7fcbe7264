"""Stand-ins for the service: scripted servers, and fakes behind a real gRPC server."""
