"""Tests of the project's own tools: the servers that tests start, the rules that CI applies."""
