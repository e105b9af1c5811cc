"""Training on sampled neighbourhoods of a sliding window, from stores on all ranks (DistDy)."""
