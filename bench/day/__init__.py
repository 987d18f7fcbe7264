"""Simulates one day of a group for each strategy, and draws what it moves and how even it stays.

`python -m bench.day` is the command. In the order of reading: `simulation` makes up the events of the day and lets
every strategy and every model of `bench.strategies.models` plan them; `picture` draws the result; `__main__` saves the
picture for `docs/performance.md` and prints the totals. Not promised: that other days look alike. One seed decides all,
so the same strategies give the same bytes.
"""
