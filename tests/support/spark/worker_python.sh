#!/bin/sh
# Runs Python for a Spark worker, before other work of the machine where that is allowed: Spark gives a worker 10 s to
# import itself and connect, which can't be set, and fails the query of one that is late.
exec nice -n -10 "$WORKER_PYTHON" "$@"
