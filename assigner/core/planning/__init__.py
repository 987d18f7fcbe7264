"""From a group's records to a strategy's problem, and from its solution to moves."""
