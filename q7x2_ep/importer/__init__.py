"""ONNX models become graphs: reader.py drives, opset.py knows old versions, tensors.py reads weights."""

from q7x2_ep.importer.reader import read

__all__ = ["read"]
