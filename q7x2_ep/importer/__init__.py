"""ONNX models become graphs: reader.py drives, opset.py updates old ops, contrib.py rewrites those
of com.microsoft, tensors.py loads weights; writer.py goes back."""

from q7x2_ep.importer.reader import AS_IT_IS, Request, read
from q7x2_ep.importer.writer import Track, replacing, save, write

__all__ = ["AS_IT_IS", "Request", "Track", "read", "replacing", "save", "write"]
