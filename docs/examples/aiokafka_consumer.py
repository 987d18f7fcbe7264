"""Consume with aiokafka, with partitions given out by the assigner instead of Kafka's own group protocol.

    python docs/examples/aiokafka_consumer.py --assigner 127.0.0.1:50051 --kafka 127.0.0.1:9092 \\
        --group billing --topic orders --name worker-1

Start it several times with different names. SIGTERM or Ctrl-C drains: what it holds is handed over first.
"""

from __future__ import annotations

import argparse
import asyncio

from assigner.client.aiokafka import AssignedKafkaConsumer


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--assigner", "--kafka", "--group", "--topic", "--name"):
        parser.add_argument(option, required=True)
    told = parser.parse_args()
    async with AssignedKafkaConsumer(told.assigner, told.kafka, told.group, told.name, [told.topic]) as records:
        async for record in records:
            place = f"{record.topic}/{record.partition} offset {record.offset} epoch {records.epoch_of(record)}"
            print(f"{place}: {record.value!r}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
