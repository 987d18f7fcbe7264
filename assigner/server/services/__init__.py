"""The gRPC services: check a request, call `assigner.api`, encode the answer."""
