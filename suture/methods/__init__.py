"""How hospitals learn together: one paper per file, gathered in `registry`."""
