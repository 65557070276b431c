"""Ops on files and records: reading, parsing, saving, summaries."""
