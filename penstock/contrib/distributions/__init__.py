"""tf.distributions: probability distributions, one family per file."""
