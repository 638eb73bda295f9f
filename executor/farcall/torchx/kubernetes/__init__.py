"""Kubernetes apps: the Kubernetes parts of the scheduler ``kubernetes_job``."""
