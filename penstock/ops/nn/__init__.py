"""Parts of neural networks: activations, normalisation, losses, embeddings, quantization."""
