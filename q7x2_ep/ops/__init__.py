"""The op catalogue: what every op means, one entry per op, by family.

An entry is a class used as a namespace, registered by `@op("Name")` (ONNX), `@op("domain::Name")`,
our own as `@op("q7::Name")`, and listed in FAMILIES. Its parts, in this order; functions take the
node, never self:

    signature   "x: F, axes?: int64 -> y": operand names, `?` optional, `*` variadic (last), and
                behind a colon the type of one, which is checked where types are inferred
    attributes  {name: default}; the importer fills in defaults, so node.attrs holds every key
    choices     {name: values}: which an attribute may have in a model, where `infer` does not tell
    takes_arrays  true: a model's lists of numbers are arrays, as long ones are quickly made
    named_graphs  true: the names of what its bodies take and give say what it is, and stay
    own         those that only we know, and that do not change what a node means
    strided     positions of inputs that `lower` reads through any strides, if any
    folds_late  true: of constants it is evaluated after fusion only, which looks for it
    takes_late  true: it takes results of such ops as constants before fusion, too
    is_random   true: no two evaluations agree, so that it is neither folded nor merged with another
    infer(node) -> list[Type]                  shapes and dtypes of the outputs
    reference(node, *arrays) -> array | tuple  numpy, obvious not fast, in the dtype it is given
    prepared(node) -> function of arrays       its reference, for many runs of one node, if that is
                                               worth it
    decompose(g, *values) -> Value             the meaning in smaller ops; fused ops have only this
    standard(node) -> op, inputs, attrs | None fused ops: the ONNX op that this one equals, if any
    view(node, view) -> View | None            movement ops: the output as a view of the input
    bound(node) -> Dim                         ops whose output 0 has a size that only data tells:
                                               its elements at most, see plan/partition.py
    guards(node) -> list[Guard]                what bind checks of the shapes; `assumptions`: of
                                               what irregular feeds may break (Request.regular)
    lower(node, b)                             emits the C steps through the plan builder b

The types of operands; those of one type have one dtype, of its kind. Each is the narrowest that
holds what the versions of an op allow, and what it holds beyond that is for `lower` to refuse.

    T        any, which says something of several operands only
    N F I    numbers, floats, integers; B those of 8 bits
    Q        what quantised tensors hold: integers of up to 32 bits, floats of up to 8
    T1 F1 .. another of the kind
    index    int32 or int64
    int64 .. this dtype, by its name in numpy

A node whose entry has neither `lower` nor `view` gives way to its `decompose` before fusion
(passes/expand.py). Where it has none, or where `lower` raises UnsupportedOp, the node is a host
step: its `reference` runs between two native phases (plan/partition.py). Ops with bodies have
`control` in place of `reference` (control.py).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, Optional

from q7x2_ep import dtypes

OPS: dict[str, Any] = {}  # of the families that were imported so far

# The ops of each file, which is imported with the first model that has one: all of them take 15 ms.
# A domain is that of the names behind it.
FAMILIES = {
    "activation": (
        "Tanh Sigmoid Relu Gelu Softplus Clip LeakyRelu Elu HardSigmoid HardSwish Swish Mish "
        "Selu Celu Softsign ThresholdedRelu Shrink PRelu q7:: Softcap SquaredRelu"
    ),
    "attention": "Attention",
    "bits": "BitwiseNot BitwiseAnd BitwiseOr BitwiseXor BitShift BitCast",
    "blocks": "com.microsoft:: MatMulNBits q7:: BlockLinear",
    "cast": "Cast CastLike",
    "chain": "q7:: Chain",
    "contrib_attention": (
        "com.microsoft:: MultiHeadAttention DecoderMaskedMultiHeadAttention Attention QAttention"
    ),
    "contrib_attn_lstm": "com.microsoft:: AttnLSTM",
    "contrib_blocks": "com.microsoft:: MatMulBnb4 GatherBlockQuantized",
    "contrib_embed": "com.microsoft:: EmbedLayerNormalization QEmbedLayerNormalization",
    "contrib_gates": (
        "com.microsoft:: GatedRMSNorm BranchwiseRMSNorm ScaledSiLU GatedAdd "
        "HyperConnectionPreMix HyperConnectionPostMix EngramGate LinearAttentionGate "
        "CausalConvWithState MRotaryEmbedding"
    ),
    "contrib_generation": "com.microsoft:: BeamSearch GreedySearch Sampling WhisperBeamSearch",
    "contrib_gqa": "com.microsoft:: GroupQueryAttention SparseAttention",
    "contrib_linear": (
        "com.microsoft:: FusedMatMul TransposeMatMul FusedGemm FusedConv "
        "ConvTransposeWithDynamicPads SparseToDenseMatMul"
    ),
    "contrib_moe": "com.microsoft:: MoE QMoE MoEGroupRouter",
    "contrib_packed": "com.microsoft:: MatMulFpQ4 GatherPacked",
    "contrib_quant": (
        "com.microsoft:: QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearSoftmax "
        "QLinearAveragePool QLinearGlobalAveragePool QLinearWhere QLinearConcat QLinearConv "
        "NhwcMaxPool QGemm MatMulIntegerToFloat DynamicQuantizeMatMul DynamicQuantizeLSTM"
    ),
    "contrib_rare": (
        "com.microsoft:: BifurcationDetector NGramRepeatBlock CDist Unique UnfoldTensor "
        "MatMulInteger16 WordConvEmbedding MurmurHash3 DynamicTimeWarping CropAndResize "
        "MaxpoolWithMask"
    ),
    "contrib_text": "com.microsoft:: Tokenizer",
    "contrib_varlen": (
        "com.microsoft:: VarlenCausalConvWithState NGramHashMapping VarlenNGramHashMapping "
        "GatedDeltaNet q7:: GatedDeltaNet"
    ),
    "control": "If Loop Scan SequenceMap q7:: Deferred",
    "conv": "Conv q7:: Conv",
    "conv_transpose": "ConvTranspose Col2Im q7:: ConvTranspose",
    "creation": "ConstantOfShape Range EyeLike",
    "einsum": "Einsum",
    "elementwise": (
        "Abs Neg Sign Exp Log Sqrt Reciprocal Erf Floor Ceil Round IsNaN IsInf Add Sub Mul Div "
        "Pow Mod Min Max Sum Mean Identity Dropout"
    ),
    "experts": "q7:: ExpertLinear GatedExpertLinear",
    "flex": "ai.onnx.preview:: FlexAttention",
    "fused": "q7:: Contents Linear GatedLinear Attention SkipLayerNorm SkipRmsNorm Mix",
    "gather": "Gather GatherElements GatherND",
    "grid": "GridSample AffineGrid",
    "host": "q7:: Python",
    "labels": (
        "ai.onnx.ml:: LabelEncoder CategoryMapper OneHotEncoder DictVectorizer CastMap ZipMap "
        "q7:: Encoded Categories"
    ),
    "linear_attention": "com.microsoft:: LinearAttention",
    "logic": "Not Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Where",
    "lookup": "q7:: ByteTable",
    "loss": "NegativeLogLikelihoodLoss",
    "matmul": "MatMul Gemm q7:: ScaledMatMul",
    "matrix": "Det com.microsoft:: Inverse",
    "ml": (
        "ai.onnx.ml:: ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer Normalizer "
        "Scaler LinearRegressor LinearClassifier"
    ),
    "movement": (
        "Shape Size Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Slice Split Trilu "
        "Concat"
    ),
    "norm": (
        "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization "
        "BatchNormalization MeanVarianceNormalization LpNormalization"
    ),
    "optional": "Optional OptionalHasElement OptionalGetElement",
    "pad": "Pad CenterCropPad",
    "pool": "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxUnpool LRN",
    "quant": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    "quant_conv": "ConvInteger QLinearConv q7:: QuantizedConv",
    "quant_product": "MatMulInteger QLinearMatMul q7:: QuantizedLinear",
    "random_numbers": (
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial"
    ),
    "rank": "TopK ArgMax ArgMin OneHot",
    "rearrange": "DepthToSpace SpaceToDepth ReverseSequence",
    "reduce": (
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceSumSquare ReduceL1 ReduceL2 "
        "ReduceLogSum ReduceLogSumExp CumSum CumProd"
    ),
    "regions": "MaxRoiPool RoiAlign DeformConv",
    "resize": "Resize",
    "rnn": "RNN GRU LSTM",
    "rope": "RotaryEmbedding q7:: Rope",
    "scatter": "ScatterElements ScatterND TensorScatter q7:: TensorScatter SliceScatter",
    "selection": "NonZero Compress Unique NonMaxSuppression",
    "sequences": (
        "SequenceEmpty SequenceConstruct SequenceInsert SequenceErase SequenceAt SequenceLength "
        "ConcatFromSequence SplitToSequence"
    ),
    "signal": "DFT STFT",
    "softmax": "Softmax LogSoftmax Hardmax",
    "svm": "ai.onnx.ml:: SVMRegressor SVMClassifier q7:: PairProbabilities",
    "text": "TfIdfVectorizer StringSplit StringNormalizer RegexFullMatch q7:: NGrams",
    "trees": "ai.onnx.ml:: TreeEnsembleRegressor TreeEnsembleClassifier TreeEnsemble q7:: Forest",
    "trigonometry": "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh",
}


def _families() -> dict[str, str]:
    """The family of each op."""
    found = {}
    for family, text in FAMILIES.items():
        domain = ""
        for word in text.split():
            if word.endswith("::"):
                domain = word
            else:
                found[domain + word] = family
    return found


_FAMILY_OF = _families()


def op(name: str) -> Callable[[Any], Any]:
    """Enter a class in the catalogue under an op type."""

    def register(entry: Any) -> Any:
        family = entry.__module__.rpartition(".")[2]
        if _FAMILY_OF.get(name) != family:
            raise ValueError(f"op {name} is not among those of {family} in FAMILIES")
        if name in OPS:
            raise ValueError(f"op {name} is entered twice in {family}")
        entry.attributes = {
            key: dtypes.attribute(default) if isinstance(default, float) else default
            for key, default in entry.attributes.items()
        }
        OPS[name] = entry
        return entry

    return register


def find(name: str) -> Optional[Any]:
    """The entry of an op type, or None."""
    entry = OPS.get(name)
    if entry is None and name in _FAMILY_OF:
        import_module(f"{__name__}.{_FAMILY_OF[name]}")
        return OPS[name]
    if entry is None and "@" in name:  # see host.py
        from q7x2_ep.ops.host import standard_entry

        return standard_entry(name)
    return entry


def always_fits(node: Any) -> bool:
    """Whether the guards of a node hold whatever is fed: it may go, and nobody misses them."""
    from q7x2_ep.ops.common import NotInferable

    guards = getattr(find(node.op), "guards", None)
    try:
        return guards is None or all(left == right for left, right, _ in guards(node))
    except NotInferable:  # sizes that only a run knows
        return False


def entries() -> dict[str, Any]:
    """Every entry, by name."""
    return {name: find(name) for name in _FAMILY_OF}
