"""What the service shows of itself beside its log: metrics, and the log of ownership events.

- `metrics`: what drivers report, by name and meaning. `instance_metrics`: figures that an instance has anyway, read at
  each scrape. No other module imports prometheus_client.
- `event_log`: ownership events as lines of JSON, written to segments of bounded size and age by a thread of its own.

May import the core's values and what is below. Drivers above report to these classes; the core does not know them. Not
promised: that an event is on disk when the change it tells of is. A full queue drops events and counts them.
"""
