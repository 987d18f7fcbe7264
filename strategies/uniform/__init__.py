"""Solver for homogeneous subscriptions: every member may own every partition."""
