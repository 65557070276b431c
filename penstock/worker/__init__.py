"""The worker of a task compiles its partitions of graphs and runs steps on its devices."""
