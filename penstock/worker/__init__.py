"""The worker of a task runs steps of its partitions of graphs, and keeps the resources of its devices."""
