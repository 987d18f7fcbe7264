"""Values that are stored, sent and compared: keys, records and names."""
