"""HTTP server of the local AWS emulator: one port for Batch and moto's services."""
