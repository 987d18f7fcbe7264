"""The project seen from outside: its Dockerfile, its wheel, its rule about skipped tests."""
