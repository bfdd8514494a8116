"""What `import onnxruntime.tools` finds where no package has it."""

raise ImportError(
    f"{__name__} is plain Python of onnxruntime's own package, which is not installed. Install it: "
    "its Python is found then, and works on q7x2_ep, while its native module stays unused"
)
