"""Standby copies: how many each member holds, where they are placed, which one is promoted."""
