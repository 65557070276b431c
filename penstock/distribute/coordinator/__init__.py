"""The coordinator: sends functions to workers, which drive the parameter servers."""
