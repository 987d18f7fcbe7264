"""The `assigner` command."""

from assigner.cli.app import main

__all__ = ["main"]
