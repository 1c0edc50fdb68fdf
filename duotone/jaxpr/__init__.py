"""The front end for JAX: from a function to a graph, and from a painting back to a program."""
