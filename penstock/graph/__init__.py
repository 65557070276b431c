"""The graph and what it is made of: dtypes, shapes, devices, tensors, ops."""
