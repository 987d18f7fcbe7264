"""Runs `spark-submit pipeline.py NAME ...` as `assigner pipeline NAME ...`, on the cluster of spark-submit."""

from __future__ import annotations

import sys

from assigner.cli import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
