"""Pure functions from graph to graph, run once per signature: prune, optimize, place, partition."""
