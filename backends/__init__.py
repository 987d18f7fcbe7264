"""Implements the stores that can hold the service's records, and leader election on top of any of them.

- `memory`: a store within the process, for tests, demos and embedding; nothing survives the process.
- `etcd`: for production.
- `election`: leader election by leases and leader keys; works on any store, so both backends use it.

The service finds a backend by its entry point in the group `assigner.backends` and imports none by name. It implements
`assigner.backend.Backend`, knows the interfaces (`store`, `election`) and the primitives of `aio`, and no driver.
`assigner.testing.conformance` has the tests that each backend must pass, those of third parties included.
"""
