"""Tools that ops are declared and written with, none of them an op: types, shape rules, lists as values, waiting."""
