"""Lets unmodified Kafka clients join groups: speaks Kafka's protocol to them, and passes the rest on to the brokers.

- `settings`: this package's section of the settings.
- `requests`: what the wire and the handlers of groups know of each other: a request, its client, the table of handlers.

The wire, from a socket to a handler or a broker and back:

- `server`: starts, drains and closes it all; `ports`: one port per broker, and one to begin with.
- `connection`: one client: its frames in order, answers in order, and how much of both is kept.
- `frames`: splits bytes into frames; `codec`: decodes requests after a check of every length, and encodes answers.
- `versions`: which APIs and versions are offered; `wire`: what connections share, and where groups are coordinated.
- `pipe`: a client's own connection to a broker; `upstream` is the package that reaches brokers.
- `login`: the package that knows who a client is and what it may do. `traffic`: counts and bounds.

Groups:

- `groups`: the calls that groups of both kinds have, answered with `group_entities`.
- `topics`: Kafka's topics by name and id.
- `modern`: members of Kafka 4's protocol; `classic`: those of the protocol before.

It may import the interfaces of `assigner.api`, and never the service that runs it. kio and re2 are imported in this
package only. Everything belongs to one event loop. Not promised: any state. What a gateway knows it can read again from
the store.
"""
