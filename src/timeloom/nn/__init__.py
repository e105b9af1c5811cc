"""Models: written once, for one process, knowing no rank and no system."""
