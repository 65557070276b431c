"""`tf.contrib.seq2seq`: losses over sequences, decoders and the helpers that feed them, attention, beam search."""
