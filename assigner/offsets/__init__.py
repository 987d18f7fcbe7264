"""Keeps committed offsets: written under the owner's epoch, read by the next owner, reset by an operator.

What is admitted, and which commits share a transaction, is decided in `assigner.core.offset_commits`. This package may
import `members` (to find the session of a client that names none), `storage`, `core` and what lies below them.

One commit, end to end:

1. `commit.OffsetService` applies the group's quota and admits the commit by the partition's assignment: owner, session
   and epoch must be the committer's. What the mirror does not admit is checked against the store before it is refused.
2. `commit.CommitWriter` puts it into a transaction with those of other callers. Preconditions are the assignment that
   admitted it and the offset that it replaces, so the store itself refuses an owner that was replaced meanwhile.
3. On a conflict both are read again: the commit is found written, refused with the new owner's name, or tried again.
4. The caller is answered when the offset is on record, for good.

`fetch` reads offsets from the store, for the next owner. `reset` writes them for an operator, as long as no consumer
owns the partition, or with force in any case.

Not promised: an order between commits of one partition through different instances at the same time, or that offsets
of different partitions are of the same moment.
"""
