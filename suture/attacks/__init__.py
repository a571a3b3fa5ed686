"""Attacks on our own promise, and audits of it."""
