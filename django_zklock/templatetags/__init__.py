"""What the templates of the dashboard are written with."""
