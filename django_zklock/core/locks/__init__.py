"""One acquisition: its holds, its block, and what aborts its work."""
