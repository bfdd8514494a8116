"""ONNX models become graphs: reader.py drives, opset.py updates old ops, tensors.py loads weights."""

from q7x2_ep.importer.reader import read

__all__ = ["read"]
