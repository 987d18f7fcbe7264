"""What stands between two peers, or replaces one: proxies that lose or hold bytes, a raw HTTP/2 client."""
