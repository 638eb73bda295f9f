"""Kubernetes apps: what of the scheduler ``kubernetes_job`` is Kubernetes's own."""
