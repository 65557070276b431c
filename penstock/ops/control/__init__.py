"""Control: which nodes run, how often, and in which order. Conditionals, loops, groups, Python functions."""
