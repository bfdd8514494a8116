"""What would be native in onnxruntime's package."""
