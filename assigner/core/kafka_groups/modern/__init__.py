"""Decides for members of Kafka 4's protocol (KIP-848): one machine per member, and the rules around it.

In this protocol one call does everything. A member says what it has, the service says what it should have, and a
difference is resolved in two steps: the service takes away and waits until the member says that it has let go, then it
gives to another. Here the service is the assigner: a member is a consumer with a session, what it should have are the
assignments of its consumer stream, and taking away is a Release that waits for its ack.

In order: `requests` (a heartbeat, the errors that may answer it, and the checks in the broker's order), `subscription`
(what a member wants, which it says once and later leaves out), `member` (the machine), `holds` (how long an answer is
held back until there is news, so that members that only poll are told at once), `offsets` (who may commit and fetch).

May import `assigner.api`, `assigner.model` and `assigner.errors`. Topics are known by name here; whoever translates
gives a name that no topic has to an id that nobody knows. Not promised: that member epochs are those that a broker
would give. Clients compare them with their own only.
"""
