"""What an open consumer stream costs, and how long one change takes to reach all of them.

The service runs in this process on the memory store or on etcd, the streams are opened by another. The change: a topic
appears with one partition for each consumer; the time runs from its write to each stream's message, planning and all
the assignments' writes included. Consumers come 200 at a time over 50 connections, and then all at once with a
connection each, as they do after a deploy or an outage. `python -m bench.streams [--quick] [--store etcd] [--json]`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from contextlib import nullcontext

import psutil
from rich.console import Console
from rich.table import Table

from assigner.cli.gc_tuning import freeze
from assigner.model.records import GroupOptions
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings, StoreSection
from bench.lag import LoopLag
from bench.store import some_etcd

GROUP = "bench"


def memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def measure(streams: int, connections: int, at_once: int, store: StoreSection) -> dict[str, object]:
    settings = Settings(
        store=store,
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        consumer_ttl=120.0,
        group=GroupOptions(debounce=0.0),
    )
    async with Service(settings) as service, LoopLag() as lag:
        await service.wait_ready()
        freeze()
        before = memory()
        began, cpu = time.monotonic(), time.process_time()
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.open_streams",
            service.address,
            GROUP,
            str(streams),
            str(connections),
            str(at_once),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 * 2**20,
        )
        assert child.stdout
        try:
            said, _, failed = (await child.stdout.readline()).decode().partition(" ")
            if said != "open":
                raise RuntimeError("the streams were not opened")
            opened, cpu = time.monotonic() - began, time.process_time() - cpu
            per_stream = (memory() - before) / streams
            await asyncio.sleep(0.5)
            lag.reset()
            began = time.monotonic()
            await service.instance.operations.set_topic(GROUP, "topic", streams)
            heard = sorted(moment - began for moment in json.loads(await child.stdout.readline()))
        finally:
            child.kill()
            await child.wait()
    return {
        "streams": streams,
        "connections": connections,
        "at_once": at_once,
        "open_s": round(opened, 2),
        "open_cpu_s": round(cpu, 2),
        "failed_tries": int(failed),
        "kb_per_stream": round(per_stream / 1024, 1),
        "first_ms": round(1000 * heard[0]),
        "p50_ms": round(1000 * heard[len(heard) // 2]),
        "p99_ms": round(1000 * heard[int(0.99 * len(heard))]),
        "last_ms": round(1000 * heard[-1]),
        "lag_p999_ms": round(1000 * lag.percentile(0.999), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 streams only")
    parser.add_argument("--streams", type=int, nargs="+", metavar="N", help="instead of 1,000 and 5,000")
    parser.add_argument("--store", choices=["memory", "etcd"], default="memory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json, width=140)
    rows = []
    for streams in options.streams or ([1_000] if options.quick else [1_000, 5_000]):
        for connections, at_once in ((50, 200), (streams, streams)):
            with (
                console.status(f"{streams:,} streams over {connections:,} connections"),
                some_etcd(None) if options.store == "etcd" else nullcontext() as endpoint,
            ):
                store = StoreSection(backend=options.store, endpoints=(endpoint,) if endpoint else ())
                rows.append(asyncio.run(measure(streams, connections, at_once, store)))
    shown = Table(title="Streams")
    for column in rows[0]:
        shown.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        shown.add_row(*(f"{value:,}" for value in row.values()))
    console.print(shown)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
