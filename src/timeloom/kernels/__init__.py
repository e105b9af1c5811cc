"""What can be computed of one graph in one process: tensors in, tensors out."""
