"""The migrations of the table of fences."""
