"""Puts the parts together: settings, composition, and the embedded core."""
