"""Locks and HTTP: which calls are views, their transactions, and the response to a lock conflict."""
