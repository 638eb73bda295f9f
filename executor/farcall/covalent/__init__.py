"""Covalent integration; only the subpackage `plugin` imports Covalent."""
