"""What `@zk_locked` makes of views, tasks and functions."""
