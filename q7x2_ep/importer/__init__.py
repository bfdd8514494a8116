"""ONNX models become graphs: reader.py drives, types.py and attributes.py know what protobuf calls
things, scope.py what names mean, opset.py updates old ops, contrib.py rewrites those of
com.microsoft, tensors.py loads weights; writer.py goes back."""

from q7x2_ep.importer.reader import read

__all__ = ["read"]
