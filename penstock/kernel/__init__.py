"""What ops are declared and written with, and no op: sets of types, shape rules, lists as values, ways to wait."""
