"""Encodes claims: ownership markers that a member commits beside offsets, to trust its checkpoint later.

A restarted process is a new session, and its epochs are higher than those in Spark's checkpoint. Did another member own
the partition in between? Each owner claims a partition by committing the offset it found once more under its own epoch,
with its name and the epoch since which the name has not changed. Epochs only rise with a change of ownership, so a gap
between the last claim and the new epoch means that another member did.
"""

from __future__ import annotations

import msgspec

from assigner.client.offsets import CommittedOffset
from assigner.spark.positions import HeldPartition


class Claim(msgspec.Struct, frozen=True):
    member: str
    since: int
    """The epoch since which this member was the only owner of the partition."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def claim_of(metadata: str) -> Claim | None:
    """Read the claim in an offset's metadata; None if another kind of consumer, or an operator, wrote it."""
    try:
        return msgspec.json.decode(metadata, type=Claim)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def held_by(member: str, epoch: int, found: CommittedOffset | None, otherwise: int) -> HeldPartition:
    """Compute what `member` holds under `epoch` from the committed offset; without one it begins at `otherwise`."""
    if found is None:
        return HeldPartition(epoch, epoch, otherwise)
    claim = claim_of(found.metadata)
    unbroken = claim is not None and claim.member == member and found.epoch in (epoch - 1, epoch)
    return HeldPartition(epoch, claim.since if claim is not None and unbroken else epoch, found.offset)
