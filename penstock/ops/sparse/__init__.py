"""Ops on sparse tensors, and on sets as their rows."""
