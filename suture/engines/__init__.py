"""Engines run the same method objects in different places: here, all in one process."""
