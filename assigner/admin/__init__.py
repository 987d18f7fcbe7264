"""Carries out the calls of operators about groups, behind the Admin service. See `assigner.api.Administration`.

Every instance serves every call: what an operator wants becomes a record in the store, and the group's leader acts on
the record, wherever it runs.

- `operations`: all of the calls; describes groups from mirrors, changes options, and passes the rest on.
- `group_options`: checks a change of options, field by field.
- `loads`: shows and publishes the weights of partitions.
- `classic`: reads what is on record of classic Kafka groups.
- `deletion`: removes a group or a topic in bounded transactions, and keeps the epochs that later groups start above.

May import everything below the servers: `leader`, `offsets`, `members`, `topics` and `storage`. Not promised: that a
change has taken effect when the call returns. It is on record then.
"""
