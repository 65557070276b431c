"""Control: ops that decide which nodes run, how often and in which order; also functions of Python and JAX as nodes."""
