"""`tf.metrics`: numbers that accumulate over steps in local variables."""
