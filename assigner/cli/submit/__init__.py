"""Files for `spark-submit`, in a directory of their own: Spark puts the directory of what it runs on the path."""
