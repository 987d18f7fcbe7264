"""Turns consumers' samples of load into the weights that strategies plan by.

In order: `samples` smooths what consumers report to one instance and says what is worth writing. `records` translates
between stored loads and arrays, and merges a write into what was stored. `weights` turns the records into one weight
per partition, and replaces the weights in force only when they have changed enough. `trigger` asks for a plan when they
have.

May import `group`, `work_queue`, and of strategies only the interface. Not promised: that a load is current, or that
instances agree on one. Loads are advice: losing them costs balance and nothing else.
"""
