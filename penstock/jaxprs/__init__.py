"""Jaxprs, used in other ways than compiling them: run by NumPy, padded to a bound."""
