"""Random numbers, with and without state, and samplers of classes."""
