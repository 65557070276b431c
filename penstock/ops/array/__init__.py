"""Ops on tensors as arrays: making, reshaping, joining, slicing, gathering and sorting them."""
