"""What tests have in common: clusters, servers, fakes, oracles, measurements."""
