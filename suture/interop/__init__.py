"""Interoperability: where hospitals' data differ, how certain that is, what it probably means, and
what to ask. `join` lets a hospital that comes after training fit its own layers."""
