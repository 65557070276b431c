"""Ops on strings: forms, parts, joins, regular expressions, Unicode, hashes."""
