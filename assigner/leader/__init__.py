"""What the leader of a group runs: the campaign for its term, the coordinator, and the records it keeps for others."""
