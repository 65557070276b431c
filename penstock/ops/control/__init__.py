"""Which nodes run, how often, and in which order: conditionals, loops, groups, Python functions."""
