"""Stores that can hold the service's records, and the leader election on top of them.

- `memory`: within the process, for tests, demos and embedding; it keeps nothing.
- `etcd`: for production.
- `election`: leader election by leases and leader keys; works on any store, so both backends use it.

A backend is found by its entry point in the group `assigner.backends`, and nobody imports it by name. It implements
`assigner.backend.Backend`, knows the interfaces (`store`, `election`) and the primitives of `aio`, and no driver.
`assigner.testing.conformance` has the tests that each backend must pass, those of third parties included.
"""
