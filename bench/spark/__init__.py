"""Measures the Spark source `assigned_kafka` beside Spark's own Kafka source, and the audit of long ownership logs.

Two commands: `python -m bench.spark` and `python -m bench.spark.audit`. In the order of reading:

1. `environment`: a broker, an assigner and a Spark session on one machine, for both sources.
2. `rates`: rows per second. `pauses`: how long a partition rests when it changes hands.
3. `__main__`: measures both and prints the tables.
4. `audit`: makes up an ownership log with faults, and times the job that has to find them; needs no broker.

Java 17 must be there, and Maven for the broker and Spark's own source. Not promised: what a cluster would do.
Everything shares one machine, and Spark runs two tasks at a time.
"""
