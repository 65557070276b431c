"""Ops that move windows over images and volumes: convolutions, pools, blocks of space."""
