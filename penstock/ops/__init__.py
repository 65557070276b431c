"""The op library: one file per family, one declaration per op."""
