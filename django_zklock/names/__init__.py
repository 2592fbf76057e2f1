"""Lock names: templates, the values of their fields, and the arguments of a call that fill them."""
