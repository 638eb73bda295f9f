"""The HTTP side of the embedded AWS: one port, with moto's services behind it."""
