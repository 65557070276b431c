"""Control: ops that decide which nodes run, how often and in which order; also Python functions as nodes."""
