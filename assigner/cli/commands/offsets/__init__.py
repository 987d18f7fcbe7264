"""`assigner offsets`: shows and sets the committed offsets of a group, and moves them from Kafka and back.

- `stored`: what is on record with the service, and setting it from a file.
- `transfer`: `import` from a group in Kafka, and `export` to one.
- `lag`: how far what is committed is behind, where a command is given Kafka's address.
- `kafka`: a Kafka group's offsets and members, by confluent-kafka, which no other module of the command line knows.

Not promised: that a transfer is atomic. It is made in parts, and what is not done yet is done by the same command.
"""

from assigner.cli.commands.offsets.stored import MAX_FILE_BYTES, MAX_PER_LIST, MAX_SET, offsets, read_offsets
from assigner.cli.commands.offsets.transfer import export_offsets, import_offsets

offsets.add_command(import_offsets)
offsets.add_command(export_offsets)

__all__ = ["MAX_FILE_BYTES", "MAX_PER_LIST", "MAX_SET", "offsets", "read_offsets"]
