"""Somebody else's package."""
