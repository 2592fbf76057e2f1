"""Optional parts, each an app or a module of its own. A project opts into those that it needs."""
