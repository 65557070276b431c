"""Tensors as arrays: making, reshaping, joining, slicing, gathering, sorting them."""
