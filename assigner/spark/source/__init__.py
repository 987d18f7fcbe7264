"""The data source `assigned_kafka`: plans batches on the driver, fetches records on executors."""
