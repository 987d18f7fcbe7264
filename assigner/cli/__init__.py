"""The `assigner` command: `app` puts it together from `commands`, a module for each command or family of commands.

- `connection`: the options that reach a service (`--address`, TLS), and calls to it.
- `output`: tables for people, JSON for programs.
- `exit_codes`: how a command fails, and with which code.
- `gc_tuning`: the garbage collector of `assigner serve`.
- `submit/pipeline.py`: the file that `spark-submit` runs for `assigner pipeline`.

It is the top layer: it may import everything, nothing imports it. A command's module is imported when the command runs.
Promised: options, exit codes and JSON fields of docs/reference/cli.md stay. Not promised: the look of tables.
"""

from assigner.cli.app import main

__all__ = ["main"]
