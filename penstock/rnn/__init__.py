"""Recurrent networks: cells, wrappers around cells, and the loops that run them over time."""
