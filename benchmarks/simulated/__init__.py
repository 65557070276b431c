"""A cluster in one process under a simulated clock: the real code, over a network and workers that are modelled."""
