"""A site with the admin on it, a browser that looks at it, and locks to be looked at."""
