"""Compiling: a partition is cut into segments, each of which becomes one program in the form that suits its shapes."""
