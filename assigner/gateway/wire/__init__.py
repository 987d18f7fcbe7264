"""Carries requests from a client's socket to a handler or a broker, and the answers back.

- `ports`: one port per broker, and one to begin with.
- `connection`: one client: its frames in order, answers in order, and how much of both is kept.
- `dispatch`: the requests of one connection that are answered here, one after the other, and its login.
- `refusals`: the answer to a request that is not passed on because its client may not make it.
- `pipe`: the requests that are passed on, over a connection to the broker that is this client's own.
- `frames`: splits bytes into frames, and reads the head of a request.
- `versions`: which APIs and versions are offered.
- `shared`: what connections share, and where groups are coordinated; `traffic`: counts and bounds.

May import the rest of the gateway but for groups, which it knows as a table of handlers, and of the gRPC server what
admits connections. Not promised: that answers of brokers are checked. What names brokers in them is rewritten.
"""
