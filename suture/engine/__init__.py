"""One run, from a study to its result."""
