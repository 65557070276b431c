"""Ops on numbers: arithmetic, functions, comparisons, casts, reductions, signals."""
