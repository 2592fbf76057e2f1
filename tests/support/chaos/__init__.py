"""The chaos suite's tools: processes that use locks, faults, histories, and the checks of these."""
