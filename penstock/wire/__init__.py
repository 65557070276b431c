"""The wire carries what tasks say to each other."""
