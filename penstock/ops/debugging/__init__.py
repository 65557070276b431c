"""Ops that look at values while a step runs: assertions and prints."""
