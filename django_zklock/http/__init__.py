"""Locks and HTTP: the response to a busy lock, and locks kept for a streamed response."""
