"""Real servers as child processes: etcd, Kafka, PostgreSQL."""
