"""Compiling: pure nodes become one program, in the form that suits the shapes and how often they come."""
