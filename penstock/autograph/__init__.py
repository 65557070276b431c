"""AutoGraph: Python control flow over tensors becomes nodes of the graph."""
