"""Optimizers: they turn gradients into updates of variables. One file per rule."""
