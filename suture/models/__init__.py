"""Model shapes: a flat parameter vector and what it predicts."""
