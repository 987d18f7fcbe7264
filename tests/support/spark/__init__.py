"""What tests of Spark use: fakes of queries and state for those without a JVM; JVMs, drivers and feeds for the rest."""
