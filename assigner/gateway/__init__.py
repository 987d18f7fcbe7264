"""Lets unmodified Kafka clients join groups: speaks Kafka's protocol to them, and passes the rest on to the brokers.

`settings` is this package's section of the settings.

It may import the interfaces of `assigner.api`, and never the service that runs it. Not promised: any state. What a
gateway knows it can read again from the store.
"""
