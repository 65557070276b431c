"""A task's worker: it compiles its part of the graph and runs steps on its devices."""
