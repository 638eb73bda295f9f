"""Job runners: what starts, watches and ends an attempt of the emulated Batch."""
