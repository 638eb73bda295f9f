"""Local Kubernetes emulator: API server, controllers and kubelet."""
