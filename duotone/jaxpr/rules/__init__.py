"""How first-order equations are bound in half, and in other forms."""
