"""Clients of every kind in one group, as real processes around a real broker: who processes what, and how often.

`mixed` is the command, `python -m tests.kafka_groups.mixed --seconds 60 --store etcd`; the tests run a short course,
and try the checker with ledgers in which a fault was planted.
"""
