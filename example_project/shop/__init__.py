"""A shop that sells its last items. Only one process at a time may read an item's stock and write it back."""
