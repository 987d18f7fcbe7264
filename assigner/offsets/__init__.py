"""Committed offsets: written under the owner's epoch, read back by the next owner, reset by an operator."""
