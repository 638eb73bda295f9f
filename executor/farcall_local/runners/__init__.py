"""Job runners, which start, monitor and stop attempts of the emulated Batch."""
