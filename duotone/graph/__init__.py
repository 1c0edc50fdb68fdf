"""The neutral graph of a program, its matrix products and minimum cuts, for any framework."""
