"""The demos of ``farcall demo``, ``farcall covalent demo`` and ``farcall ui --demo``."""
