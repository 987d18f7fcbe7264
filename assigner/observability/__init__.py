"""Collects the metrics of the service, writes the log of ownership events, and makes spans.

- `metrics`: counters and histograms that drivers report to. `instance_metrics`, `identity_metrics` and
  `gateway_metrics`: the figures of an instance, of its callers' identities and of its gateway, read at each scrape. No
  other module imports prometheus_client.
- `event_log`: ownership events as lines of JSON, written to segments of bounded size and age by a thread of its own.
- `tracing`: spans of Kafka clients' requests, by OpenTelemetry's API, which no other module imports.

May import the core's values and what is below. Drivers above report to these classes; the core does not know them. Not
promised: that an event is on disk when its change is in the store. A full queue drops events and counts them.
"""
