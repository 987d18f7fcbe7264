"""Lets unmodified Kafka clients join groups: speaks Kafka's protocol to them, and passes the rest on to the brokers.

- `settings`: this package's section of the settings.
- `requests`: what the wire and the handlers of groups know of each other: a request, its client, the table of handlers.
- `codec`: decodes requests after a check of every length in them, and encodes answers.

It may import the interfaces of `assigner.api`, and never the service that runs it. kio and re2 are imported in this
package only. Everything belongs to one event loop. Not promised: any state. What a gateway knows it can read again from
the store.
"""
