"""Optimizers: what turns gradients into updates of variables. One file per rule."""
