"""Finds out who a Kafka client is, by SASL or its certificate, and what it may do.

- `scram`: the computations of SCRAM (RFC 5802), of both sides, without I/O.
- `credentials`: the file of users, with their keys and rights.
- `sasl`: the exchange of one connection: PLAIN, SCRAM, and tokens of this service (OAUTHBEARER).
- `access`: whether a client may do something.

May import `assigner.auth` and, of the gateway, `requests` and `settings`. Not promised: that whoever knows a password
may not guess another one; failed tries are limited by address, and counted.
"""
