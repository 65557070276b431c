"""The wire: how tasks talk to each other."""
