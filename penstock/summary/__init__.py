"""Event files: what TensorBoard shows of a training."""
