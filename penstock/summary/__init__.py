"""Event files, from which TensorBoard shows the progress of a training."""
