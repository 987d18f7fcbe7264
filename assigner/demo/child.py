"""Runs a module as a process that ends when the demo ends, however the demo ends.

    python -m assigner.demo.child MODULE ARGUMENT...

The demo holds the other end of this process's standard input, and writes nothing to it. When the demo has gone, even by
SIGKILL, the input ends.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def end_with_the_demo() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs the module in this way."""
    return [sys.executable, "-m", "assigner.demo.child", module, *arguments]


if __name__ == "__main__":
    threading.Thread(target=end_with_the_demo, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
