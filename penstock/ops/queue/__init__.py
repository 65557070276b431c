"""Values that some steps put in and others wait for: queues, staging areas, accumulators."""
