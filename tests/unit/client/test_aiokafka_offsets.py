"""The aiokafka adapter asks Kafka for the committed offset again while the group has no coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError, KafkaError

from assigner.client.aiokafka import OFFSET_FETCH_RETRIES, _Partitions
from assigner.core.client.messages import Ownership

pytestmark = pytest.mark.virtual_time

TP = TopicPartition("orders", 3)
OWNED = Ownership("orders", 3, 7)


class Admin:
    """Answers each request for offsets as the script says: an error to raise, or what was found."""

    def __init__(self, *answers: KafkaError | dict[Any, Any]) -> None:
        self.answers = list(answers)

    async def list_consumer_group_offsets(self, group: str, partitions: list[Any]) -> dict[Any, Any]:
        assert (group, partitions) == ("billing", [TP])
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer


FOUND = {TP: OffsetAndMetadata(42, "6")}


async def test_a_group_whose_coordinator_is_not_there_yet_is_asked_again() -> None:
    admin = Admin(GroupCoordinatorNotAvailableError(), GroupCoordinatorNotAvailableError(), FOUND)
    partitions = _Partitions(None, admin, "billing")
    await partitions.assigned(OWNED)
    assert (partitions.owned[TP].offset, partitions.owned[TP].epoch, admin.answers) == (42, 7, [])


async def test_a_reply_without_the_partition_is_no_answer() -> None:
    admin = Admin({}, FOUND)
    partitions = _Partitions(None, admin, "billing")
    await partitions.assigned(OWNED)
    assert (partitions.owned[TP].offset, admin.answers) == (42, [])


async def test_what_a_retry_can_not_cure_is_raised_at_once() -> None:
    admin = Admin(GroupAuthorizationFailedError(), FOUND)
    partitions = _Partitions(None, admin, "billing")
    with pytest.raises(GroupAuthorizationFailedError):
        await partitions.assigned(OWNED)
    assert (partitions.owned, admin.answers) == ({}, [FOUND])


async def test_a_coordinator_that_does_not_come_fails_the_call_so_that_a_release_goes_on() -> None:
    admin = Admin(*[GroupCoordinatorNotAvailableError()] * (OFFSET_FETCH_RETRIES + 1))
    with pytest.raises(GroupCoordinatorNotAvailableError):
        await _Partitions(None, admin, "billing").assigned(OWNED)
    assert admin.answers == []
