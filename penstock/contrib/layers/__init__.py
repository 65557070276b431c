"""tf.contrib.layers: layers as functions, with variables called weights and biases."""
