"""Variables as users see them: ref and resource variables, scopes, initializers, partitioners, regularizers."""
