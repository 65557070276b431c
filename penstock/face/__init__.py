"""What programs expect around the graph API: flags, app, logging, gfile, and clear errors for names that are missing.

The faces (`penstock.v1` and its submodules) re-export these modules; nothing here knows graphs.
"""
