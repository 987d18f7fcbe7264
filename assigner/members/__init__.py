"""Serves the consumers at this instance: registration, streams, acks and load reports.

This package reads, writes and retries; the decisions are pure functions in `assigner.core` (`sessions`,
`handoff.acks`, `consumer_view`). It may import `storage`, `core` and what lies below them, never `leader`: a leader and
the consumers' side share nothing but the store.

From Register to the first message:

1. `registration` checks that the instance has room and that the group and its topics are known, writes the consumer's
   registration under a lease (join, resume or takeover), and waits until the group's mirror shows it.
2. `streams` opens the consumer's stream. The registry keeps one stream per consumer name; the dispatcher of the group
   listens to its mirror and puts every partition that a change touches into the outboxes of the streams concerned.
3. The stream's first message is everything the consumer owns and has to do; after that, differences.

After that the consumer calls. `callers` looks up the registration that a call acts for, from whichever instance it was
made. `acks` takes Ready and Released to the handoff's record, where the group's leader sees them. `load_reports`
collects loads, and writes them for the leader now and then. Deregister marks the registration as draining; the
stream ends, and the lease with it, once everything is handed over.

Not promised: that a consumer whose session has ended has stopped. A lease shows that its holder renewed it, never that
it stopped; what keeps a late one from doing harm are epochs and the client's own gates.
"""
