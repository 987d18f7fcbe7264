"""Tests of several parts at work together."""
