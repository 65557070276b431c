"""Tools for declaring and writing ops, none of them an op: types, shape rules, lists as values, waiting."""
