"""Hostile requests: made from what the wiki promises to take, spoiled in every way that we can think of.

`python -m tests.hostile --requests 100000` starts a server of its own and tells what it answered; the test suite runs a
bounded share of it.
"""
