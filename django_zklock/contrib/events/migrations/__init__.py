"""The migrations of the table of events."""
