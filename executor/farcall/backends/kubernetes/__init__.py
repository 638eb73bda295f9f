"""Kubernetes: jobs of one namespace, by its API."""
