"""Sparse tensors, and sets as rows of them."""
