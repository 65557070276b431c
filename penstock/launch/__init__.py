"""Starting programs: the command line."""
