"""Decisions: what is computed where and when, in numbers and index arrays. No torch."""
