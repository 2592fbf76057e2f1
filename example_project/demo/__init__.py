"""Runs the shop: `python -m demo` shows it at work, `python -m demo.check` proves that it sells no piece twice."""
