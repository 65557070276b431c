"""Ops on state that steps keep and change: variables, their updates, tensors of a session, stacks."""
