"""The data layer: dynamic graphs on disk, and everything that makes or reads them. NumPy only; no torch, no processes."""
