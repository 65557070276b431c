"""The master prunes, optimizes, places and splits a graph, and drives the steps of all tasks."""
