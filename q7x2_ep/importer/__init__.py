"""ONNX models become graphs: reader.py drives, wire.py reads protobuf's format, nodes.py nodes, in
the order of order.py, types.py and attributes.py know what protobuf calls things, scope.py what
names mean, opset.py updates old ops, loops.py what loops declare, contrib.py rewrites those of
com.microsoft, tensors.py loads weights; writer.py goes back.
"""

from q7x2_ep.importer.reader import read

__all__ = ["read"]
