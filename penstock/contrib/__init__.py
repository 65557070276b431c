"""The part of tf.contrib that programs use: arg_scope, contrib.layers, slim, HParams, distributions."""
