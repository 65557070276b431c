"""Ops on matrices: products, factors, solutions, norms, diagonals."""
