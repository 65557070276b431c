"""What programs use of tf.contrib: arg_scope, contrib.layers, slim, HParams, distributions."""
