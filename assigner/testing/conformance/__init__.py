"""The tests of the contract of a Store; each is named by the guarantee it checks.

The author of a backend runs them from pytest (with pytest-asyncio in auto mode):

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def subject(self):
            async with open_my_store() as store, open_my_store() as another:
                yield Subject(store, another, compact=my_compact, prefix=f"/test-{uuid4()}/")

and puts `pytest.register_assert_rewrite("assigner.testing.conformance")` into the conftest for readable failures.
Not covered, because only the backend can provoke it: lost connections, hung servers, refused credentials.
"""

from __future__ import annotations

from assigner.testing.conformance.leases import LeaseConformance
from assigner.testing.conformance.reads import ReadConformance
from assigner.testing.conformance.subject import Subject
from assigner.testing.conformance.transactions import TransactionConformance
from assigner.testing.conformance.watches import WatchConformance
from assigner.testing.conformance.writes import WriteConformance

__all__ = ["StoreConformance", "Subject"]


class StoreConformance(ReadConformance, WriteConformance, TransactionConformance, LeaseConformance, WatchConformance):
    """All guarantees of `assigner.store`."""
