"""What a test of the service, or of a store for it, needs. Public: authors of backends use it too.

- `assigner.testing.conformance`: the tests that say whether a Store keeps its promises.
- `assigner.testing.virtual_time`, `assigner.testing.plugin`: tests that wait for hours and take no time.
- `assigner.testing.faults`: a Store that delays, refuses, forgets to answer, freezes and breaks watches on request.
- `assigner.testing.counting`: a Store that counts what is asked of it.
- `assigner.testing.waiting`: waiting for a condition.
"""
