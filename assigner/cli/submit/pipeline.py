"""`spark-submit pipeline.py NAME ...` is `assigner pipeline NAME ...` on whatever cluster spark-submit was told."""

from __future__ import annotations

import sys

from assigner.cli import main

if __name__ == "__main__":
    main(["pipeline", *sys.argv[1:]])
