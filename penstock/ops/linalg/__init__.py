"""Matrices: products, factors, solutions, norms, diagonals."""
