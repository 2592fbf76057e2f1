"""Who runs the work under a lock, in what surroundings, and how it is stopped and woken."""
