"""Placeholder until its room is furnished."""
