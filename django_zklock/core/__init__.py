"""The lock, without Django."""
