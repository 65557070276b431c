"""Queues, staging areas, accumulators and clocks: some steps put values in, and others wait for them."""
