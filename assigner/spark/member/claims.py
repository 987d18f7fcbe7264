"""What a member writes beside a committed offset, so that it can trust its own checkpoint after a restart.

A new process is a new session, and its epochs are higher than those in Spark's checkpoint. Was anybody else at work in
between? Each owner claims a partition by committing the offset it found once more under its own epoch, with its name
and the epoch since which the name has not changed. Epochs only go up by changes of ownership, so a gap between the last
claim and ours means that somebody was.
"""

from __future__ import annotations

import msgspec

from assigner.client.offsets import CommittedOffset
from assigner.spark.positions import HeldPartition


class Claim(msgspec.Struct, frozen=True):
    member: str
    since: int

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def claim_of(metadata: str) -> Claim | None:
    """None for what another kind of consumer, or an operator, wrote."""
    try:
        return msgspec.json.decode(metadata, type=Claim)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def held_by(member: str, epoch: int, found: CommittedOffset | None, otherwise: int) -> HeldPartition:
    """What `member` holds under `epoch`. `found` is on record; `otherwise`: where to begin if nothing is."""
    if found is None:
        return HeldPartition(epoch, epoch, otherwise)
    claim = claim_of(found.metadata)
    unbroken = claim is not None and claim.member == member and found.epoch in (epoch - 1, epoch)
    return HeldPartition(epoch, claim.since if claim is not None and unbroken else epoch, found.offset)
