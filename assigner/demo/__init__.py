"""`assigner demo`: workers join, crash and drain on a terminal, against a real service in this process.

With `--routers` the workers are pods that serve requests, and routers send these. The modules in order: `script` lists
the steps and waits until each is done; `environment` runs the service and the workers; `ownership_changes` finds out
who owns what, and why it changed; `snapshot` is the state at one moment; `rendering` renders it; `show` runs all of
that; `recording` saves it as .svg or .txt. `child` runs each process, and ends it with the demo. For routers:
`routed_script`, `routed_environment`, the processes `pod` and `router`, and `traffic`, which is what routers say of
their requests, with `traffic_rendering`. The package imports the service, the client and
the library of routers, as an embedding program would; only the command line imports it. Not promised: a stable output;
it is for people to watch.
"""
