"""penstock: TensorFlow's graph, session and parameter-server API on JAX."""
