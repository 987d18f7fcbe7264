"""A strategy's problem in the terms the solvers share: units, shares, current owners, options."""
