"""The client prepares a run: it converts what is fed and puts together what is fetched."""
