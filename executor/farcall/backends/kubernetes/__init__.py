"""Kubernetes backend: jobs of one namespace."""
