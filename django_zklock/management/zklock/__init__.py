"""
The sub-commands of `manage.py zklock`, one module each.

The docstring of a module is its help text, `add_arguments` declares its options, and `run` does the work.
"""
