"""Decides what a consumer does about what the service sends: commands in, calls of the handler and acks out.

It imports `model` and `errors` only: no clock, no thread, no task. `client.runner` drives it.

`messages` are the values in between, `gate` decides whether work on a partition may begin or have its effect,
`partition` holds what is known of one partition, and `state` derives the next call from that after each event.

Not promised: that the handler is called for every grant. A grant that is superseded before its call never reaches it.
"""
