"""Integrations with optional third parties, one per module; none imports another."""
