"""Runs two instances under churn and cut connections, and tells whether they stay flat and everything settles.

`python -m bench.soak` is the command. In the order of reading: `churn` starts the instances, etcd and the proxies,
lets clients come and go, cuts connections, and takes samples; `report` decides whether the samples are flat and shows
them; `__main__` reads the options and prints the verdict. Not promised: that two runs with one seed are equal, because
timing differs; and a verdict worth anything on a machine that does something else.
"""
