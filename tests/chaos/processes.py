"""Chaos with real processes: instances, consumers and etcd are killed, frozen and cut off, in both modes side by side.

`make chaos-processes MINUTES=10`, or `python -m tests.chaos.processes --help`. Consumers work behind their gates into
one file and commit; then all is healed and everything is looked at: effects, answered commits, etcd's own history, and
whether every instance is alive and takes registrations. Exit status 1: something was found.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from assigner.model.keys import AssignmentKey, PlanKey, TopicPartition
from assigner.model.records import Assignment, Offset, Plan, decode
from tests.support.network.tcp_proxy import TcpProxy
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.process import answers
from tests.support.service_processes import CONSUMER_TTL, Child, Effect, Fleet, until

INSTANCES = ("a", "b", "c")
PARTITIONS = 8
FEWEST, MOST = 4, 9
HEALED_WITHIN = 60.0


class ProcessChaos:
    def __init__(self, etcd: EtcdServer, directory: Path, portal: BlockingPortal, seed: int) -> None:
        self.dice = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self._etcd = etcd
        self._portal = portal
        self._proxies = {name: TcpProxy(etcd.endpoint) for name in INSTANCES}
        self.fleet = Fleet(etcd, directory)
        self._answered = directory / "answered.txt"
        self._answered.touch()
        for name, proxy in self._proxies.items():
            portal.call(proxy.start)
            self.fleet.add(name, proxy.endpoint)
        self.consumers: dict[str, Child] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        """What ends a disturbance, and when."""

    def start(self) -> None:
        self.fleet.make_whole()
        self.groups = {mode: self.fleet.group(PARTITIONS, "a", mode) for mode in ("exclusive", "overlap")}
        for _ in range(FEWEST):
            self._spawn()

    def close(self) -> None:
        self.fleet.close()
        for proxy in self._proxies.values():
            self._portal.call(proxy.stop)

    # --- what may happen ---------------------------------------------------------------------------------------------

    def run(self, seconds: float, tell: Callable[[str], None] = lambda line: None) -> None:
        end, told = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < end:
            self._something()
            self._end_disturbances(time.monotonic())
            if time.monotonic() - told > 15.0:
                told = time.monotonic()
                tell(f"{end - told:.0f} s to go, {sum(self.happened.values())} disturbances, {self._effects()} effects")
            time.sleep(self.dice.uniform(0.2, 1.5))

    def _something(self) -> None:
        happenings = [
            (3, self._kill_instance),
            (3, self._freeze_instance),
            (4, self._cut),
            (3, self._swallow),
            (3, self._kill_consumer),
            (3, self._freeze_consumer),
            (3, self._stop_consumer),
            (3, self._spawn),
            (1, self._restart_etcd),
            (1, self._freeze_etcd),
        ]
        what = self.dice.choices([what for _, what in happenings], [weight for weight, _ in happenings])[0]
        self.happened[what.__name__.strip("_")] += 1
        what()

    def _after(self, ttls: float, what: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + ttls * CONSUMER_TTL, what))

    def _end_disturbances(self, now: float) -> None:
        due = [what for at, what in self._later if at <= now]
        self._later = [(at, what) for at, what in self._later if at > now]
        for what in due:
            what()

    def _kill_instance(self) -> None:
        instance = self.fleet[self.dice.choice(INSTANCES)]
        if instance.is_running:
            instance.kill()
            self._after(self.dice.uniform(0.2, 2.0), lambda: None if instance.is_running else instance.start())

    def _freeze_instance(self) -> None:
        self._freeze(self.fleet[self.dice.choice(INSTANCES)])

    def _freeze(self, child: Child) -> None:
        if child.is_running:
            child.freeze()
            self._after(self.dice.uniform(0.3, 3.0), lambda: child.thaw() if child.is_running else None)

    def _cut(self) -> None:
        self._portal.call(self._proxies[self.dice.choice(INSTANCES)].cut)

    def _swallow(self) -> None:
        """What etcd says does not arrive for a while: whoever asks has to give up."""
        proxy = self._proxies[self.dice.choice(INSTANCES)]
        proxy.swallows_answers = True
        self._after(self.dice.uniform(0.1, 1.0), lambda: setattr(proxy, "swallows_answers", False))

    def _spawn(self) -> None:
        if len(self.consumers) < MOST:
            name = f"w{self.happened['spawned']}"
            self.happened["spawned"] += 1
            at = self.dice.choice(INSTANCES)
            extra = {"answered": str(self._answered)}
            self.consumers[name] = self.fleet.spawn(name, list(self.groups.values()), at, **extra)

    def _somebody(self) -> str | None:
        return self.dice.choice(sorted(self.consumers)) if len(self.consumers) > FEWEST else None

    def _kill_consumer(self) -> None:
        if name := self._somebody():
            self.consumers.pop(name).close()

    def _stop_consumer(self) -> None:
        if name := self._somebody():
            child = self.consumers.pop(name)
            if child.is_running:
                child.tell(signal.SIGTERM)

    def _freeze_consumer(self) -> None:
        if self.consumers:
            self._freeze(self.consumers[self.dice.choice(sorted(self.consumers))])

    def _restart_etcd(self) -> None:
        self._etcd.kill()
        time.sleep(self.dice.uniform(0.1, 0.7) * CONSUMER_TTL)
        self._etcd.start()

    def _freeze_etcd(self) -> None:
        self._etcd.freeze()
        time.sleep(self.dice.uniform(0.1, 1.2) * CONSUMER_TTL)
        self._etcd.thaw()

    # --- and then ----------------------------------------------------------------------------------------------------

    def heal(self) -> list[str]:
        """End every disturbance; what is not well within a minute."""
        self._end_disturbances(float("inf"))
        for instance in self.fleet.instances.values():
            if not instance.is_running:
                instance.start()
        for name in [name for name, child in self.consumers.items() if not child.is_running]:
            del self.consumers[name]
        while len(self.consumers) < FEWEST:
            self._spawn()
        return self._unwell()

    def _unwell(self) -> list[str]:
        end, found = time.monotonic() + HEALED_WITHIN, []
        for what, holds in self._wellness():
            try:
                until(holds, max(1.0, end - time.monotonic()), what, every=0.2)
            except AssertionError:
                found.append(what)
        return found

    def _wellness(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        """What has to hold, one after the other: the next is asked for when the last one holds or was given up."""
        fleet, group = self.fleet, self.groups["overlap"]
        for name, instance in fleet.instances.items():
            for page in ("livez", "readyz"):
                yield f"zombie: {name} says /{page} is good", partial(answers, f"http://{instance.web}/{page}")
        names = tuple(self.consumers)
        for mode, shared in self.groups.items():
            what = f"stuck: the {mode} group is shared by {names}"
            yield what, partial(fleet.is_shared, shared, *names, partitions=PARTITIONS)
        for name, instance in fleet.instances.items():
            probe = fleet.crew.join(group, f"probe-at-{name}", [instance.address])
            yield f"zombie: {name} takes registrations", partial(self._is_registered, group, probe.name)

    def _is_registered(self, group: str, name: str) -> bool:
        return name in self.fleet.truth.consumers(group)

    def _effects(self) -> int:
        return sum(len(self.fleet.effects(group)) for group in self.groups.values())

    def violations(self) -> list[str]:
        found = [f"gates: {double}" for double in self.fleet.double_owners(self.groups["exclusive"])]
        found += [f"gates: {double}" for double in self._same_epoch(self.fleet.effects(self.groups["overlap"]))]
        for group in self.groups.values():
            found += self._went_back(group) + self._lost_commits(group)
        return found

    def _same_epoch(self, effects: list[Effect]) -> list[str]:
        owners: dict[tuple[TopicPartition, int], Effect] = {}
        return [
            f"{effect} and {first}"
            for effect in effects
            if (first := owners.setdefault((effect.tp, effect.epoch), effect)).who != effect.who
        ]

    def _went_back(self, group: str) -> list[str]:
        keys, found = self.fleet.truth.keys.group(group), []
        epochs: dict[TopicPartition, int] = {}
        plan = Plan()
        for change in self.fleet.truth.history(group):
            match keys.parse(change.key):
                case AssignmentKey(tp) if change.value is not None:
                    epoch = decode(Assignment, change.value)[0].epoch
                    if epoch <= epochs.get(tp, 0):
                        found.append(f"epoch: {tp} of {group} went from {epochs[tp]} to {epoch}")
                    epochs[tp] = epoch
                case PlanKey() if change.value is not None:
                    after = decode(Plan, change.value)[0]
                    if after.generation < plan.generation or after.epoch_floor < plan.epoch_floor:
                        found.append(f"plan: of {group} went from {plan} to {after}")
                    plan = after
        return found

    def answered(self, group: str) -> dict[TopicPartition, set[int]]:
        commits: dict[TopicPartition, set[int]] = {}
        for line in self._answered.read_text().splitlines():
            of, topic, partition, offset = line.split()
            if of == group:
                commits.setdefault(TopicPartition(topic, int(partition)), set()).add(int(offset))
        return commits

    def _lost_commits(self, group: str) -> list[str]:
        """The record is never below a commit that was answered; and each of those was on record."""
        keys, answered, found = self.fleet.truth.keys, self.answered(group), []
        on_record: dict[TopicPartition, set[int]] = {}
        highest: dict[TopicPartition, int] = {}
        for change in self.fleet.truth.changes(keys.offsets(group)):
            tp = keys.parse_offset(group, change.key)
            if tp is None or change.value is None:
                continue
            offset = decode(Offset, change.value)[0].offset
            if offset < highest.get(tp, 0):
                found.append(f"offset: {tp} of {group} went back to {offset} after {highest[tp]} was answered")
            on_record.setdefault(tp, set()).add(offset)
            if offset in answered.get(tp, ()):
                highest[tp] = max(offset, highest.get(tp, 0))
        for tp, commits in answered.items():
            missing = commits - on_record.get(tp, set())
            if missing:
                found.append(f"offset: {sorted(missing)[:5]} of {tp} of {group} were answered and never on record")
        return found

    def table(self) -> list[str]:
        counts = {**self.happened, "effects behind gates": self._effects()}
        counts["answered commits"] = sum(len(c) for g in self.groups.values() for c in self.answered(g).values())
        return [f"{name:<28}{count:>10}" for name, count in sorted(counts.items())]


def main(arguments: list[str] | None = None) -> int:
    told = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.processes", description=told)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--seed", type=int, default=0, help="what happens is drawn by it; when it does is the machine's"
    )
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as directory,
        start_blocking_portal() as portal,
        EtcdServer(Path(directory)) as etcd,
    ):
        chaos = ProcessChaos(etcd, Path(directory), portal, asked.seed)
        try:
            chaos.start()
            chaos.run(60 * asked.minutes, lambda line: print(line, flush=True))
            found = chaos.heal() + chaos.violations()
            print("\n".join(chaos.table()))
        finally:
            chaos.close()
    print("\n".join(found) or "0 violations, 0 zombies", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
