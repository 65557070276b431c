"""Eager execution: tensors with values, gradient tapes, functions traced into graphs."""
