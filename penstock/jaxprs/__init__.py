"""Jaxprs, and what is done with them besides compiling: run by NumPy, padded to a bound."""
