"""From a function to a graph: trace, build, and what each equation is."""
