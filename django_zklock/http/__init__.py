"""Locks and HTTP: the request that a function gets, its transactions, and the response to a lock conflict."""
