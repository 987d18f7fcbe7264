"""Defines values that every layer shares: names, keys, records, commands, defaults.

It imports `errors` and the values of `store` only, and does nothing: no I/O, no clock.

`names` checks what groups, consumers and topics may be called. `keys` is the only place that knows how keys in the
store are written, `records` the only one that knows their values. `commands` are what the service sends to a consumer
and what the consumer acknowledges, the same classes on both sides. `kafka_groups` has the requests, answers and records
of classic Kafka groups. `defaults` holds ports and the share of a TTL that a lease's holder relies on.

Not promised: that a record is valid as a whole. A value of the store that can't be read is reported and left alone.
"""
