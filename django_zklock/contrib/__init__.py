"""What is opted into: integrations with third parties, and an app with a table of its own; none imports another."""
