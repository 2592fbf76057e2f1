"""`manage.py zklock`: one command, and a module here for each of its sub-commands."""
