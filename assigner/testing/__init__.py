"""Provides public test support: for tests of stores, of strategies, and of programs that use the service.

- `conformance`: tests of the contract of a Store.
- `strategies`: tests of the contract of a Strategy.
- `virtual_time`: an event loop on which hours of waiting take no time.
- `plugin`: for pytest, the mark `virtual_time`, and the fixture `embedded_assigner`, a whole service for tests of its
  users.
- `faults`: a Store that delays, refuses, drops responses, freezes and breaks watches on request.
- `counting`: a Store that counts calls.
- `waiting`: waits for a condition.

It may import the service, and nothing of the service imports it. Helpers that only this project's own tests use are in
`tests/support`. Not promised: virtual time for code that blocks a thread or talks to another process.
"""
