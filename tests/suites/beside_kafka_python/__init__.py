"""What kafka-python's published archive leaves out of its tests: copied beside them, and run there."""
