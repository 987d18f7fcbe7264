"""The script of the demo with routers: routers and pods come and go, and no request is lost."""

from __future__ import annotations

from assigner.demo.routed_environment import PODS, ROUTERS, RoutedEnvironment
from assigner.demo.script import DemoStep, settled, states
from assigner.demo.snapshot import Snapshot, State

ONE, TWO, THREE, FOUR = PODS


async def _start(environment: RoutedEnvironment) -> None:
    await environment.start(ONE, TWO, THREE)
    await environment.start_routers(*ROUTERS[:2])


async def _swap_routers(environment: RoutedEnvironment) -> None:
    await environment.start_routers(ROUTERS[2])
    environment.stop_router(ROUTERS[0])


def _flowing(snapshot: Snapshot, *routers: str) -> bool:
    """Whether these routers, and no others, have requests answered, and none waits."""
    traffic = snapshot.traffic
    if traffic is None:
        return False
    present = {router.name for router in traffic.routers if router.present and router.per_second > 0}
    gone = {router.name for router in traffic.routers if not router.present}
    known = {router.name for router in traffic.routers}
    return present == set(routers) and known == present | gone and traffic.total("stashed") == 0


ROUTED_STEPS: tuple[DemoStep[RoutedEnvironment], ...] = (
    DemoStep(
        "Two routers send each request to the pod that owns its partition",
        _start,
        lambda snapshot: settled(snapshot, ONE, TWO, THREE) and _flowing(snapshot, *ROUTERS[:2]),
        10,
    ),
    DemoStep(
        "A fourth pod joins: while a partition moves, routers hold its requests",
        lambda environment: environment.start(FOUR),
        lambda snapshot: settled(snapshot, *PODS) and _flowing(snapshot, *ROUTERS[:2]),
        16,
    ),
    DemoStep(
        "router-3 joins and router-1 leaves: pods and clients notice nothing",
        _swap_routers,
        lambda snapshot: _flowing(snapshot, *ROUTERS[1:]),
        8,
    ),
    DemoStep(
        "pod-1 drains: it hands its partitions over while requests come",
        lambda environment: environment.drain(ONE),
        lambda snapshot: (
            settled(snapshot, TWO, THREE, FOUR)
            and states(snapshot)[ONE] is State.GONE
            and _flowing(snapshot, *ROUTERS[1:])
        ),
        14,
    ),
    DemoStep(
        "pod-2 is killed: requests are retried until others own its partitions",
        lambda environment: environment.kill(TWO),
        lambda snapshot: settled(snapshot, THREE, FOUR) and _flowing(snapshot, *ROUTERS[1:]),
        14,
    ),
)
