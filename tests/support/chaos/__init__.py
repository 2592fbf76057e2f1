"""The chaos suite's tools: processes that lock, faults to hurt them with, their histories, and what judges those."""
