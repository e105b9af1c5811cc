"""Which device computes which groups in which step."""
