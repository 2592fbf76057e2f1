"""A project whose processes run an old state of the package and the checkout, and the judge of what they did."""
