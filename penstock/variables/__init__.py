"""Variables as users see them: ref and resource variables, scopes, initializers, partitioners, regularizers."""

from penstock.variables import ref, resource, scope  # noqa: F401  both kinds of variable, and what decides between them
