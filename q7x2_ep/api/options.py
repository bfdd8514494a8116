"""SessionOptions, RunOptions and their enums, with onnxruntime's names, fields and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class GraphOptimizationLevel(IntEnum):
    """How much is rewritten: no fusions up to BASIC, all of them from EXTENDED on."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted for compatibility: steps always run in order, each spread over all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass
class SessionOptions:
    """Options of an InferenceSession.

    intra_op_num_threads: threads of a run; 0 takes the cores that affinity and cgroup quota allow.
    graph_optimization_level: see GraphOptimizationLevel. log_severity_level: 0 verbose .. 4 fatal,
    of the Python logger "q7x2_ep". optimized_model_filepath: where to write the model after passes
    and fusions, as ONNX that any tool opens (see q7x2_ep.optimize). The other fields are accepted
    and have no effect: memory is always planned into one arena, there is one thread pool per
    process, and results never depend on the number of threads.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    _config: dict[str, str] = field(default_factory=dict, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store a free-form entry; none has an effect yet."""
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """The stored entry.

        Raises: KeyError where it was never set.
        """
        return self._config[key]


@dataclass
class RunOptions:
    """Options of one run, accepted for compatibility; none has an effect yet."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
