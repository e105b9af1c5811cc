"""How sizes are chosen while training goes on."""
