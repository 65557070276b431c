"""Training on several tasks without a session: who is in the cluster, and how variables are cut for it."""
