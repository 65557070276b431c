"""Strings: forms, parts, joins, regular expressions, Unicode, hashes."""
