"""Nodes that the engine makes and programs do not name: gradients, bodies, memories, edges between tasks."""
