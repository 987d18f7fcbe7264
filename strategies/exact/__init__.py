"""Solver for any subscriptions: a flow problem, solved to its lexicographic optimum."""
