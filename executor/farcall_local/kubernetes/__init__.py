"""The embedded Kubernetes: API server, controllers and kubelet beside the embedded AWS."""
