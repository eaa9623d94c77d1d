"""Trains nothing."""

print("nothing to see")
