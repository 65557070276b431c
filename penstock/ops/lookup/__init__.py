"""Lookup tables: they map keys to values, and keep them between steps."""
