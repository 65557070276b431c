"""tf.layers: layers that make their own variables, as classes and as functions."""
