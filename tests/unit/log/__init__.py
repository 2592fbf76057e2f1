"""The loggers of the package."""
