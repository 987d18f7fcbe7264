"""Randomised histories of a whole group, checks on them, and mutations that the checks must notice."""
