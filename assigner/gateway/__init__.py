"""Lets unmodified Kafka clients join groups: speaks Kafka's protocol to them, and passes the rest on to the brokers.

- `settings`: this package's section of the settings.
- `requests`: what the wire and the handlers of groups know of each other: a request, its client, the table of handlers.

The wire:

- `server`: starts, drains and closes it all. `wire`: the package of ports, clients' connections and frames.
- `codec`: decodes requests and encodes answers. `checks`: looks at every length in a request before that.
- `upstream`: the package that reaches brokers. `login`: the one that knows who a client is and what it may do.

Groups:

- `groups`: the calls that groups of both kinds have, answered with `group_entities`.
- `topics`: Kafka's topics by name and id.
- `modern`: members of Kafka 4's protocol; `classic`: those of the protocol before.

All of it: `process` puts a gateway together on an instance; `spans` makes a span of each call about a group.

It may import the interfaces of `assigner.api`, and never the service that runs it. kio and re2 are imported in this
package only. Everything belongs to one event loop. Not promised: any state. What a gateway knows it can read again from
the store.
"""
