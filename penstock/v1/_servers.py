"""Names of `tf.train` that need gRPC, imported when a program asks for them."""

from penstock.server import Server, ServerDef
