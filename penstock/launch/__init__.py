"""The command line, which starts programs."""
