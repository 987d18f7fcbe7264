"""The plugin in a project of its own, as teams load it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

CONFTEST = 'pytest_plugins = ["assigner.testing.plugin"]'


def test_the_fixture_serves_the_topics_of_its_mark(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import socket, pytest

        def topics(assigner, group):
            described = assigner.call(lambda service: service.instance.operations.describe(group))
            return {one.topic: one.partition_count for one in described.topics}

        @pytest.mark.embedded_assigner(topics={"billing": {"orders": 4}}, consumer_ttl=3.0)
        def test_with_topics(embedded_assigner):
            host, port = embedded_assigner.address.split(":")
            socket.create_connection((host, int(port))).close()
            assert host == "127.0.0.1"
            assert topics(embedded_assigner, "billing") == {"orders": 4}
            embedded_assigner.set_topic("billing", "refunds", 2)
            assert topics(embedded_assigner, "billing") == {"orders": 4, "refunds": 2}

        @pytest.mark.embedded_assigner(topics={"billing": {"orders": 8}})
        def test_with_a_service_of_its_own(embedded_assigner):
            assert topics(embedded_assigner, "billing") == {"orders": 8}

        def test_without_a_mark(embedded_assigner):
            embedded_assigner.set_topic("any", "orders", 1)
            assert topics(embedded_assigner, "any") == {"orders": 1}
        """
    )
    # Marks that nobody registered would be errors; pytest-asyncio need not be there.
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:asyncio", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)


def test_a_setting_that_does_not_exist_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.embedded_assigner(topcis={"billing": {"orders": 4}})
        def test_it(embedded_assigner): ...
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there is no setting topcis; known are *topics*"])


def test_a_case_of_a_test_or_of_its_fixture_may_have_a_mark_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import asyncio, pytest
        from assigner.testing.virtual_time import VirtualTimeLoop

        CASES = [pytest.param(77.0, marks=pytest.mark.virtual_time(start=77.0)), 0.0]

        def check(start):
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop) == bool(start)
            assert not start or loop.time() == start

        @pytest.fixture(params=CASES)
        async def start(request):
            check(request.param)
            return request.param

        async def test_cases_of_a_fixture(start):
            check(start)

        @pytest.mark.parametrize("given", CASES)
        async def test_cases_of_a_test(given):
            check(given)

        @pytest.mark.virtual_time(start=5.0)
        @pytest.mark.parametrize("given", [5.0, 5.0])
        async def test_a_mark_of_the_test(given):
            check(given)
        """
    )
    result = pytester.runpytest_subprocess("--strict-markers", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
