"""`python -m bench [--quick]`: every benchmark, one after the other, each printing its table."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "bench.imports",
    "bench.gate",
    "bench.auth",
    "bench.store",
    "bench.offsets",
    "bench.rebalance",
    "bench.streams",
    "bench.strategies",
)
WITH_QUICK = ("bench.rebalance", "bench.streams", "bench.strategies")


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    failed = 0
    for module in BENCHMARKS:
        print(f"\n{module}", flush=True)
        arguments = ["--quick"] if quick and module in WITH_QUICK else []
        failed |= subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
