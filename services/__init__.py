"""The processes of Counterfoil and what they are made of."""
