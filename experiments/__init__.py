"""Experiments that run for real: offline, float64, one question each. Only here is torch imported."""
