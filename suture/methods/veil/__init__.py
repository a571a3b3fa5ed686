"""VEIL: hospitals privately vote for concepts, and a quorum builds a sparse model."""
