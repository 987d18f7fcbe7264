"""Reaches the Kafka brokers behind the gateway, and changes the answers of theirs that name brokers.

- `security`: TLS and SASL towards the brokers, from librdkafka's properties.
- `connection`: one connection to a broker: opened and logged in, then a pipe, or one question after the other.
- `brokers`: which brokers there are and which of them answer, kept fresh.
- `topics`: names, ids and partition counts of topics, asked for when they are needed.
- `rewriting`: puts the gateway's own ports in the place of the brokers' addresses.

May import `codec` and `frames` of the gateway, and `login.scram`. Not promised: that a broker named in an old answer
still lives; clients ask again.
"""
