"""Which settings are best: searches that ask for trials and hear how they went."""
