"""Random courses of a group with routers, pods and requests, from a seed and in virtual time.

`course` says what may happen and `settling` how it has to end. `pod` is an owner with the client library's own runner
and gates, `router` a router with the library's own cutover, and `traffic` the programs that send keyed requests through
it. `request_checks` looks at every request on its way; what holds of every revision of the store is looked at by
`tests/chaos/checks.py`, as in the other courses.
"""
