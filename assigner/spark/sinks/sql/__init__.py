"""Writes to SQL databases, SQLite and PostgreSQL, by a fenced sink: rows and fences change in one transaction.

The modules in order: `sink` (`fenced_sql`, the public function), `source` (`format("fenced_sql")`), `database` (engines
for SQLite and PostgreSQL), `tables` (rows, fences, states, staging), `staging` (tasks write rows under a token),
`commit` (the driver moves accepted rows).

Not promised: exactly once for a table that others write to without the fence.
"""
