"""The Covalent door: its REST API, and groups of its tasks. Only `plugin` imports Covalent."""
