"""The model check: the lock protocol itself, driven by a simulated ensemble, network, scheduler and clock."""
