"""Decides for members of Kafka groups: what Kafka's protocol makes of a group, as plain functions and passive machines.

- `modern/`: members of Kafka 4's protocol (`group.protocol=consumer`), which are ordinary members of assigner groups.
- `classic/`: groups of the older protocol, whose members choose a leader that assigns.

It may import the interface values of `assigner.api` and `assigner.strategy`, `assigner.model`, `assigner.errors`, and
`work_queue` and `whatif` of the core. It knows no wire format of Kafka's requests: gateways translate. Not promised:
anything about brokers, which the gateway passes requests on to.
"""
