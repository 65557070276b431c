"""Numbers: arithmetic, functions, comparisons, casts, reductions, signals."""
