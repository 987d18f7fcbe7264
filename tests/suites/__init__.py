"""The test suites that others wrote for Kafka's clients, run on a plain broker and behind the gateway side by side.

`make test-kafka-suites` or `python -m tests.suites`; `tools/install_kafka_suites.py` gets them.

In the order of reading:

- `outcomes`: what a test came to, and what it means that it came to something else behind the gateway. Pure.
- `explained.toml`: the differences that we know, each with its reason.
- `fronts`: where a suite's clients connect, the broker itself or a gateway in front of it.
- `kafka_java`, `librdkafka`, `franz_go`, `kafka_python`: how each suite is run, and how its results are read.
- `running`: processes with a limit.
- `java`, `beside_kafka_python`: what is put beside foreign code so that it runs here.

No part of `make test`: the suites take most of an hour, and need a compiler for C, Go, npm, Maven and a network once.
"""
