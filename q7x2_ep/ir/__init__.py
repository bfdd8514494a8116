"""The intermediate representation: values, nodes, graphs, symbolic dims, and their text form."""
