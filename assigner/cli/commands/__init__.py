"""The commands of `assigner`, a module for each."""
