"""What an open consumer stream costs, and how long one change takes to reach all of them.

The service runs in this process on the memory store, the streams are opened by another. The change: a topic appears
with one partition for each consumer; the time runs from its write to each stream's message, planning and all the
assignments' writes included. `python -m bench.streams [--quick] [--json]`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
import sys
import time

import psutil
import structlog
from rich.console import Console
from rich.table import Table

from assigner.collection import settle_in
from assigner.records import GroupOptions
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSection, Settings
from bench.lag import LoopLag

GROUP = "bench"


def memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def measure(streams: int, connections: int) -> dict[str, object]:
    settings = Settings(
        grpc=ServerSettings(port=0),
        http=HttpSection(port=0),
        consumer_ttl=120.0,
        group=GroupOptions(debounce=0.0),
    )
    async with Service(settings) as service, LoopLag() as lag:
        await service.wait_ready()
        settle_in()
        before = memory()
        began = time.monotonic()
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.open_streams",
            service.address,
            GROUP,
            str(streams),
            str(connections),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 * 2**20,
        )
        assert child.stdout
        try:
            if await child.stdout.readline() != b"open\n":
                raise RuntimeError("the streams were not opened")
            opened = time.monotonic() - began
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
        "open_s": round(opened, 2),
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
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(20),
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(io.StringIO()),
    )
    console = Console(stderr=options.json, width=140)
    rows = []
    for streams in [1_000] if options.quick else [1_000, 5_000]:
        with console.status(f"{streams:,} streams"):
            rows.append(asyncio.run(measure(streams, connections=50)))
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
