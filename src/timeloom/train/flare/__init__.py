"""FlareDTDG in the data plane: blocks as tensors, windows of them, and the rank that learns from these."""
