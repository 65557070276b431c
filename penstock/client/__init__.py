"""The client's side of a run: what is fed and what is fetched."""
