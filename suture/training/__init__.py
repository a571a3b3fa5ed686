"""Local optimisation, with and without differential privacy."""
