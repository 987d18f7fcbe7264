"""Elects leaders on any store, by a lease per instance and a leader key per group.

- `instance_lease`: the lease that the instance renews, its presence record, and the time until which it may trust both.
- `elector`: campaigns for leader keys under that lease. A term is the leader key's create revision, which fences every
  write of the term.

May import `aio`, `model`, the interfaces and nothing of the service above. Each loop that waits for a leader key reads
and watches that one key; it has no listing to compare, so it does not use `storage.watch_loop`.

Not promised: mutual exclusion by the lease. Two instances may both believe that they lead for a moment; the fence lets
only the holder of the leader key write.
"""
