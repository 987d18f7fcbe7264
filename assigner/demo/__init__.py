"""`assigner demo`: workers join, crash and drain on a terminal, against a real service in this process.

The story in the order of files: `play` lists the acts and waits until each is done; `stage` runs the service and the
workers; `ledger` keeps who owns what, and why it changed; `scene` is what is to be seen at one moment; `picture` draws
it; `show` runs all of that; `recording` keeps it as .svg or .txt. It imports the service and the client, as an
embedding program would; only the command line imports it. Not promised: anything; it is for people to watch.
"""
