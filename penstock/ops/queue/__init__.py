"""Queues, staging areas and accumulators: some steps put values in, and others wait for them."""
