"""Writes to fenced directories of Parquet files: one manifest per batch makes rows and fences visible together.

The modules in order: `sink` (`fenced_parquet` and `read_fenced`, the public functions), `source`
(`format("fenced_parquet")`), `files` (tasks write data files that no manifest names yet), `commit` (the driver writes
the next manifest, which fails if another member was first), `manifests` (their format, and the path checks that keep a
hostile manifest inside its directory), `maintenance` (`compact`, `vacuum`).

It needs a mounted file system with atomic exclusive links; a path to an object store is refused.
"""
