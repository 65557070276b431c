"""The graph and its parts: dtypes, shapes, devices, tensors, ops."""
