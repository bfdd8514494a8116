"""Backends: what turns a plan, or a graph, into numbers."""
