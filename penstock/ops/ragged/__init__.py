"""Ragged tensors: rows of different lengths, as values and the places where rows begin."""
