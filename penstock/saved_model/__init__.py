"""SavedModels: objects with variables, functions, assets and tables in a directory, in TensorFlow's format."""
