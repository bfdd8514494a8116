"""The plan: steps over one arena, symbolic in every size, and its encoding for the C executor."""
