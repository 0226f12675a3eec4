"""Shapes that cross the network, shared by doors and client."""
