"""The `assigner` command line: `app` registers the commands, `commands` has a module per command or related commands.

- `connection`: the options of commands that call the service (`--address`, TLS), and the calls.
- `output`: tables for people, JSON for programs.
- `exit_codes`: exit codes, and the errors that commands end with.
- `gc_tuning`: the garbage collector's settings for `assigner serve`.
- `submit/pipeline.py`: the file that `spark-submit` runs for `assigner pipeline`.

It is the top layer: it may import everything, nothing imports it. A command's module is imported when the command runs.
Promised: options, exit codes and JSON fields of docs/reference/cli.md stay. Not promised: the look of tables.
"""

from assigner.cli.app import main

__all__ = ["main"]
