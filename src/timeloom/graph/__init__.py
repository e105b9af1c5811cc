"""The data layer: dynamic graphs on disk, and everything that makes or reads them. No torch, no processes."""
