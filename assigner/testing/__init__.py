"""What a test of the service, of a store for it, or of a program that uses it needs. Public.

- `conformance`: the tests that tell whether a Store keeps its promises.
- `strategies`: the tests that tell whether a Strategy keeps its promises.
- `virtual_time`, `plugin`: tests that wait for hours and take no time.
- `embedding`: the fixture `embedded_assigner`, a whole service for tests of what uses it.
- `faults`: a Store that delays, refuses, drops responses, freezes and breaks watches on request.
- `counting`: a Store that counts calls.
- `waiting`: waits for a condition.

It may import the service, and nothing of the service imports it. Helpers that only this project's own tests use are in
`tests/support`. Not promised: virtual time for code that blocks a thread or talks to another process.
"""
