"""The engine of Kubernetes: manifests, the program of a pod, and the client that applies them and watches the pods."""
