"""Run the shop: `python -m demo` starts it with traffic, `python -m demo.check` proves that it sells nothing twice."""
