"""Suture: hospitals train one model together while every record stays behind its own wall."""

__version__ = "0.1.0"
