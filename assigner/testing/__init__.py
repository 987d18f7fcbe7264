"""What a test of the service, of a store for it, or of a program that uses it needs. Public.

- `assigner.testing.conformance`: the tests that say whether a Store keeps its promises.
- `assigner.testing.strategies`: the tests that say whether a Strategy keeps its promises.
- `assigner.testing.virtual_time`, `assigner.testing.plugin`: tests that wait for hours and take no time.
- `assigner.testing.embedding`: the fixture `embedded_assigner`, a whole service for tests of what uses it.
- `assigner.testing.faults`: a Store that delays, refuses, forgets to answer, freezes and breaks watches on request.
- `assigner.testing.counting`: a Store that counts what is asked of it.
- `assigner.testing.waiting`: waiting for a condition.
"""
