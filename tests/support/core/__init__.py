"""Scenes for the pure core: a group written down record by record, and what is decided about it."""
