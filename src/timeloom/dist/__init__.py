"""How several processes train together: who they are, what they send each other, and who is missing."""
