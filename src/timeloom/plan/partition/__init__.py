"""Which rank owns which node."""
