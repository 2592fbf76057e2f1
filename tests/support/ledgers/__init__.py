"""An app with fenced models: one table, two tables, and some to join."""
