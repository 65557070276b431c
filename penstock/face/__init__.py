"""Shared by all faces (`penstock.v1` and its submodules): switches of behaviour, errors for missing names."""
