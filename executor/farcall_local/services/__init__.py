"""The HTTP side of the local AWS emulator: one port, with moto's services behind it."""
