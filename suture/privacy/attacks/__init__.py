"""Attacks on what a site sends: what an update gives away without protection, and what is left with it.

They take arrays and callables, never rows of a site: whoever runs one brings the message.
"""
