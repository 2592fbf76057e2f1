"""The list of locks: its rows, columns, filters and groups, and the bar above it."""
