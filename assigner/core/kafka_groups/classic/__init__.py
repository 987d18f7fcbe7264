"""The coordinator of classic Kafka groups, as one machine per group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

In the order of reading:

    machine            the entrance, `ClassicGroup`: requests, results of writes and the time in, actions out
    actions            what it asks of its driver: replies, a write, an assignment to compute; and its limits
    joins              JoinGroup in each state, members with and without an id, static members
    requests           SyncGroup, Heartbeat, LeaveGroup, and who may commit, in each state
    rebalance          from one generation to the next: who is waited for, how long, who is left out
    writes             what is written, when, and which answers come after it
    state, members     what the machine knows
    records            a group as records that fit into the store, and back
    offsets            what is checked of commits and deletes, and when offsets expire
    consumer_protocol  the bytes in which consumers hide subscriptions and assignments
    server_assignor    assigns by the group's strategy, in place of a member

It may import `model`, `strategy`, `core.work_queue` and `core.whatif`, whose description of a group is translated to a
strategy's problem. The rules are those of Kafka 4.3; where ours differ, the module says so. Not promised: memory of
what was not written. After a change of leader, members that were joining join again.
"""
