"""How snapshots become units of work."""
