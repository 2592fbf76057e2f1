"""The migrations of the table of attempts."""
