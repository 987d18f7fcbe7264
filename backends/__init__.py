"""Stores that keep the assigner's records: in memory, in etcd."""
