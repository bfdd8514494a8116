"""The vision architectures of ONNX's backend suite, with random weights and any batch, against
onnxruntime. The suite has them without weights and for one image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import q7x2_ep

onnxruntime = pytest.importorskip("onnxruntime")
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LARGEST = ("light_vgg19", "light_zfnet512")  # plain stacks of what the others have too
FILES = [
    pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LARGEST), id=path.stem)
    for path in sorted(FOLDER.glob("*.onnx"))
]


def with_weights(path: Path) -> onnx.ModelProto:
    """The model with weights that keep activations of one size, its logits as its output, and a
    symbolic batch.
    """
    model = onnx.load(path)
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    positive = {name for node in norms for name in (node.input[1], node.input[4])}
    noise = rng.standard_normal(65537, np.float32)  # repeats: VGG has 140 million weights
    added = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape, (name,) = shapes[node.input[0]].tolist(), node.output
            scale = (2 / np.prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0.1
            array = np.resize(rng.permutation(noise), shape) * np.float32(scale)
            array = 1 + np.float32(0.2) * np.tanh(array) if name in positive else array
            added.append(numpy_helper.from_array(array, name))
        elif node.op_type == "Reshape" and node.input[1] in shapes:
            shape = shapes[node.input[1]].copy()
            if shape[0] == 1:
                shape[0] = 0  # as the input
                added.append(numpy_helper.from_array(shape, f"{node.name}{node.output[0]}/shape"))
                node.input[1] = added[-1].name
    kept = [node for node in graph.node if node.op_type not in ("ConstantOfShape", "Softmax")]
    used = {name for node in kept for name in node.input}
    added += [tensor for tensor in graph.initializer if tensor.name in used]
    (image,) = (info for info in graph.input if info.name not in shapes)
    image.type.tensor_type.shape.dim[0].dim_param = "N"
    logits = onnx.helper.make_tensor_value_info(kept[-1].output[0], onnx.TensorProto.FLOAT, None)
    made = onnx.helper.make_graph(kept, path.stem, [image], [logits], added)
    return onnx.helper.make_model(made, opset_imports=model.opset_import, ir_version=8)


@pytest.mark.parametrize("path", FILES)
def test_as_onnxruntime(path: Path) -> None:
    model = with_weights(path).SerializeToString()
    theirs: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with q7x2_ep.InferenceSession(model) as session:
        name = session.get_inputs()[0].name
        for batch in (1, 2, 3):
            image = np.random.default_rng(batch).standard_normal((batch, 3, 224, 224))
            feed = {name: image.astype(np.float32)}
            (y,), (wanted,) = session.run(None, feed), theirs.run(None, feed)
            assert y.shape == wanted.shape
            error = np.sqrt(np.mean(np.square(y - wanted)) / np.mean(np.square(wanted)))
            assert error < 2e-6, (batch, error)
        assert "host steps 0" in str(q7x2_ep.explain(session))
