"""The decorator `@zk_locked` for views, tasks and functions."""
