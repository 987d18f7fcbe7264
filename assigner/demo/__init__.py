"""`assigner demo`: workers join, crash and drain on a terminal, against a real service in this process.

The modules in order: `script` lists the steps and waits until each is done; `environment` runs the service and the
workers; `ownership_changes` finds out who owns what, and why it changed; `snapshot` is the state at one moment;
`rendering` renders it; `show` runs all of that; `recording` saves it as .svg or .txt. The package imports the service
and the client, as an embedding program would; only the command line imports it. Not promised: a stable output; it is
for people to watch.
"""
