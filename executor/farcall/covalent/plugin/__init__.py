"""The Covalent executor plugin: the only code that imports Covalent."""
