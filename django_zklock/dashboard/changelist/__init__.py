"""The list of locks: its rows, filters and groups."""
