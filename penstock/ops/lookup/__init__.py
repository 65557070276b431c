"""Lookup tables: from keys to values, kept between steps."""
