"""Checkpoints in TensorFlow's format: an index (a sorted table) beside files of tensor data."""
