"""From a function to a graph: traces it, builds the graph, and describes each equation."""
