"""A shop that sells the last items: whoever reads the stock and writes it back must be alone with it."""
