"""Ops that only the engine adds to graphs: gradients, bodies, memories, edges between tasks."""
