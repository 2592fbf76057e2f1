"""Locks and HTTP: the response to a lock conflict, and locks kept for streamed or rendered responses."""
