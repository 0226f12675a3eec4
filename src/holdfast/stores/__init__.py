"""Keeps the promise across a crash: the contract every store obeys, and the stores."""
