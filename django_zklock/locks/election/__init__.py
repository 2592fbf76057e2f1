"""Leader election: the candidates, their attempts, and those that only observe."""
