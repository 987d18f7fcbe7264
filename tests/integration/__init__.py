"""Tests of the whole service, over real connections."""
