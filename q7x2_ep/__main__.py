"""The command line: python -m q7x2_ep <command>, see `_parser`.

Exit codes: 0 success; 1 the accuracy rule failed, or bisect found why; 2 wrong usage, or a model,
feed or file that cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import q7x2_ep
from q7x2_ep import usage
from q7x2_ep.errors import FeedError, ModelNotFound, Q7Error, ShapeError


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if getattr(options, "dim", None):
            _check_dims(options)
        code = options.command(options)
        sys.stdout.flush()  # which fails here, not when Python ends
        return code
    except Q7Error as error:
        if options.debug:
            raise
        print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
        if isinstance(error, ShapeError) and "dim" in options:
            print("other sizes: --dim NAME=SIZE, several times if need be", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        if options.debug:
            raise
        place = "the output" if error.filename is None else repr(error.filename)
        print(f"{type(error).__name__}: {place}: {error.strerror}", file=sys.stderr)
        return 2
    except MemoryError as error:
        if options.debug:
            raise
        print(f"MemoryError: {error}; smaller sizes may fit", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def bench(options: argparse.Namespace) -> int:
    """Head to head with onnxruntime over models x threads x batches x sequences."""
    from q7x2_ep.compare import Contest, table
    from q7x2_ep.doctor import environment
    from q7x2_ep.feeds import random_feeds
    from q7x2_ep.models import small_models
    from q7x2_ep.progress import track

    if options.plot:
        _pyplot("bench", options.plot)
    models = [(name, _shipped(name)) for name in options.models or small_models()]
    for _, path in models:
        _check_exists(path)
    sizes = [(batch, sequence) for batch in options.batch for sequence in options.seq]
    jobs = [(name, path, threads) for name, path in models for threads in options.threads or [None]]
    results = []
    for name, path, threads in track(jobs, "bench"):
        with Contest(path, threads, name=Path(name).stem, unfused=options.unfused) as contest:
            seen = set()
            for batch, sequence in sizes:
                feeds = random_feeds(
                    contest.graph, batch, sequence, dict(options.dim), padding=options.padding
                )
                shapes = tuple(array.shape for array in feeds.values())
                if (
                    shapes not in seen
                ):  # a model without a sequence dim has one feed for all of --seq
                    seen.add(shapes)
                    results.append(
                        contest.measure(feeds, options.runs, options.check, options.naive)
                    )
    rows = [result.row() for result in results]
    if options.json:
        with _open(options.json) as file:
            json.dump({"environment": environment(), "rows": rows}, file, indent=1)
            file.write("\n")
    if options.csv:
        with _open(options.csv) as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if options.plot:
        _plot(rows, options.plot)
    if "-" not in (options.json, options.csv):
        print(table(results))
    return 0 if all(result.accurate for result in results) else 1


def compare(options: argparse.Namespace) -> int:
    """One model, one feed: every output, both engines."""
    from q7x2_ep.compare import Contest, table
    from q7x2_ep.feeds import random_feeds

    _check_exists(options.model)
    with Contest(options.model, options.threads, unfused=options.unfused) as contest:
        feeds = random_feeds(
            contest.graph,
            options.batch,
            options.seq,
            dict(options.dim),
            options.seed,
            padding=options.padding,
            given=_load_feeds(options.input),
        )
        result = contest.measure(feeds, options.runs, naive=options.naive)
    print(table([result]))
    print(f"{'output':<32}{'RMS error':>12}{'ORT':>12}{'scale':>12}  rule")
    for output in result.outputs:
        verdict = "ok" if output.accurate else "FAIL"
        numbers = "".join(f"{x:>12.3e}" for x in (output.ours, output.theirs, output.scale))
        print(f"{output.name[:31]:<32}{numbers}  {verdict}")
    print(f"largest difference between the two: {result.difference:.3e}")
    return 0 if result.accurate else 1


def optimize(options: argparse.Namespace) -> int:
    """Write the model as it is after passes and fusions, as ONNX that any tool opens."""
    _check_exists(options.model)
    print(q7x2_ep.optimize(options.model, options.output, fusion=options.fusion))
    return 0


def compile(options: argparse.Namespace) -> int:
    """Write plan and packed weights to a file that opens at once and that processes share."""
    _check_exists(options.model)
    session = q7x2_ep.SessionOptions()
    for name, size in options.dim:
        session.add_free_dimension_override_by_name(name, size)
    print(q7x2_ep.compile(options.model, options.output, session))
    return 0


def cache(options: argparse.Namespace) -> int:
    """What the cache of compiled models holds; or clear it."""
    from q7x2_ep.cache import clear, contents
    from q7x2_ep.knobs import get

    folder = options.folder or str(get("CACHE"))
    if not folder or os.path.isfile(folder):
        raise FeedError(f"[cache] expected a folder, or one in Q7X2_CACHE, given {folder!r}")
    print(f"{'cleared: ' if options.clear else ''}{(clear if options.clear else contents)(folder)}")
    return 0


def bisect(options: argparse.Namespace) -> int:
    """Name the first fusion, or else the pass, that spoils an output."""
    from q7x2_ep import importer
    from q7x2_ep.feeds import random_feeds

    _check_exists(options.model)
    feeds = random_feeds(
        importer.read(options.model),
        options.batch,
        options.seq,
        dict(options.dim),
        options.seed,
        padding=options.padding,
        given=_load_feeds(options.input, options.feed),
    )
    found = q7x2_ep.bisect(options.model, feeds, options.bound, options.threads or 0)
    print(found)
    return int(bool(found))


def explain(options: argparse.Namespace) -> int:
    """Fusions, near misses, steps and memory of a model."""
    if options.plot:
        _pyplot("explain", options.plot)
    _check_exists(options.model)
    explanation = q7x2_ep.explain(options.model, dict(options.dim))
    print(explanation)
    if options.arena:
        print(explanation.arena_map())
    if options.plot:
        _plot_arena(explanation, options.plot)
    return 0


def dump(options: argparse.Namespace) -> int:
    """The text of one stage."""
    from q7x2_ep.session import Session

    _check_exists(options.model)
    session = Session(options.model)
    try:
        print(session.text(options.stage, options.after))
    except ValueError as error:
        print(f"dump: {error}", file=sys.stderr)
        return 2
    finally:
        session.close()
    return 0


def run(options: argparse.Namespace) -> int:
    """Run a model once and show, or save, its outputs; of sequences and maps each tensor."""
    import numpy as np

    from q7x2_ep import importer
    from q7x2_ep.backend.numpy import tensors
    from q7x2_ep.feeds import random_feeds
    from q7x2_ep.files import is_compiled

    _check_exists(options.model)
    session_options = q7x2_ep.SessionOptions(intra_op_num_threads=options.threads or 0)
    with q7x2_ep.InferenceSession(options.model, session_options) as session:
        feeds = _load_feeds(options.input)
        if options.random:
            program = session._session.program
            feeds = random_feeds(
                program.graph if is_compiled(options.model) else importer.read(options.model),
                options.batch,
                options.seq,
                dict(options.dim),
                options.seed,
                padding=options.padding,
                given=feeds,
            )
        names = [output.name for output in session.get_outputs()]
        outputs = tensors(names, session.run(None, feeds))
    if options.output:
        archive = io.BytesIO()  # savez would add .npz to a path, and fails on a device
        np.savez(archive, **outputs)  # type: ignore[arg-type]  # any keyword goes
        Path(options.output).write_bytes(archive.getbuffer())
    for name, array in outputs.items():
        mean = (
            f"  mean {array.mean():.6g}  std {array.std():.6g}"
            if array.dtype.kind == "f" and array.size
            else ""
        )
        print(f"{name}  {array.dtype} {array.shape}{mean}")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """What an issue report should hold."""
    from q7x2_ep.doctor import environment

    facts = environment()
    if options.json:
        print(json.dumps(facts, indent=1))
        return 0
    width = max(map(len, facts))
    for name, fact in facts.items():
        shown = ", ".join(map(str, fact)) if isinstance(fact, list) else fact
        print(f"{name:<{width}}  {shown or 'none'}")
    return 0


def knobs(options: argparse.Namespace) -> int:
    """Every environment variable that is read."""
    from q7x2_ep.doctor import knob_table

    print(knob_table())
    return 0


def kernels(options: argparse.Namespace) -> int:
    """The kernel page, and what of it this CPU and build can run."""
    from q7x2_ep.backend.cpu.library import load
    from q7x2_ep.doctor import kernel_table

    print(kernel_table(load().target))
    return 0


def ops(options: argparse.Namespace) -> int:
    """Every op with its versions, and the dtypes in which it is native or runs on the host."""
    from q7x2_ep.optable import rows, table

    found = rows(options.only)
    print(json.dumps([row._asdict() for row in found], indent=1) if options.json else table(found))
    return 0


def run_as_ort(options: argparse.Namespace) -> int:
    """Run a Python program in which `import onnxruntime` gives q7x2_ep, in its subprocesses too."""
    from q7x2_ep.install import STAND_IN
    from q7x2_ep.knobs import with_python_path

    module = ["-m"] if options.module else []
    command = [sys.executable, *module, options.program, *options.arguments]
    os.execve(sys.executable, command, with_python_path(STAND_IN))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="q7x2_ep", description="Run, inspect and measure ONNX models."
    )
    parser.add_argument("--version", action="version", version=q7x2_ep.__version__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(function: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(
            function.__name__.replace("_", "-"), help=function.__doc__, description=function.__doc__
        )
        added.set_defaults(command=function)
        return added

    sub = command(bench)
    sub.add_argument(
        "models",
        nargs="*",
        help=f"paths, or names of shipped models, {_shipped_names()}; all of those by default",
    )
    sub.add_argument(
        "--batch", type=usage.counts, default=[1], help="one or several, like 1,8 (default 1)"
    )
    sub.add_argument(
        "--seq", type=usage.counts, default=[16, 128], help="one or several (default 16,128)"
    )
    sub.add_argument(
        "--threads",
        type=usage.counts,
        help="one or several (default: the cores that this process may use)",
    )
    sub.add_argument(
        "--json",
        type=usage.target_or_stdout,
        metavar="FILE",
        help="write the rows and the environment; - for stdout",
    )
    sub.add_argument(
        "--csv", type=usage.target_or_stdout, metavar="FILE", help="write the rows; - for stdout"
    )
    sub.add_argument(
        "--plot", type=usage.target, metavar="FILE", help="draw a bar chart (needs matplotlib)"
    )
    sub.add_argument(
        "--no-check", dest="check", action="store_false", help="skip the float64 evaluation"
    )
    _add_contest_options(sub)

    sub = command(compare)
    _add_model(sub)
    _add_feed_options(sub)
    _add_contest_options(sub)

    sub = command(explain)
    _add_model(sub)
    sub.add_argument("--arena", action="store_true", help="which buffer is where, step by step")
    sub.add_argument(
        "--plot", type=usage.target, metavar="FILE", help="draw that map (needs matplotlib)"
    )
    _add_dim_option(sub)

    sub = command(optimize)
    _add_model(sub)
    sub.add_argument("output", type=usage.target, metavar="OUT.onnx")
    sub.add_argument(
        "--no-fusion", dest="fusion", action="store_false", help="simplify only, keep to plain ops"
    )

    sub = command(compile)
    _add_model(sub)
    sub.add_argument("output", type=usage.target, metavar="OUT.q7")
    _add_dim_option(sub)

    sub = command(cache)
    sub.add_argument("folder", nargs="?", default="", help="(default: Q7X2_CACHE)")
    sub.add_argument("--clear", action="store_true")

    sub = command(bisect)
    _add_model(sub)
    _add_feed_options(sub, sequence=16)
    sub.add_argument("--feed", metavar="FILE.npz", help="inputs by name")
    sub.add_argument(
        "--bound",
        type=float,
        help="RMS error over RMS of an output that is still right (default: the accuracy rule)",
    )
    _add_dim_option(sub)
    _add_padding_option(sub)

    sub = command(dump)
    _add_model(sub)
    sub.add_argument(
        "--stage", choices=("ir", "fused", "plan"), default="plan", help="(default plan)"
    )
    sub.add_argument(
        "--after", metavar="NAME", default="", help="stop behind this pass or fusion instead"
    )

    sub = command(run)
    _add_model(sub)
    _add_feed_options(sub)
    sub.add_argument("--random", action="store_true", help="make up the inputs that are not given")
    sub.add_argument("--output", type=usage.target, metavar="FILE.npz", help="save the outputs")
    _add_dim_option(sub)
    _add_padding_option(sub)

    sub = command(run_as_ort)
    sub.add_argument("-m", dest="module", action="store_true", help="program is a module's name")
    sub.add_argument("program", help="a script")
    sub.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")

    sub = command(doctor)
    sub.add_argument("--json", action="store_true")
    command(knobs)
    command(kernels)
    sub = command(ops)
    sub.add_argument(
        "only",
        nargs="?",
        type=usage.pattern,
        default="",
        help="a regular expression over domain::name",
    )
    sub.add_argument("--json", action="store_true")
    return parser


def _add_feed_options(parser: argparse.ArgumentParser, sequence: int = 128) -> None:
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="may be repeated"
    )
    parser.add_argument(
        "--batch", type=usage.number, default=1, help="of random inputs (default 1)"
    )
    parser.add_argument(
        "--seq",
        type=usage.number,
        default=sequence,
        help=f"sequence length of random inputs (default {sequence})",
    )
    parser.add_argument("--seed", type=usage.number, default=0, help="of random inputs (default 0)")
    parser.add_argument(
        "--threads", type=usage.number, help="(default: the cores that this process may use)"
    )


def _add_contest_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        type=usage.count,
        help="timed runs of each engine (default: as many as fit in 1.5 s)",
    )
    parser.add_argument(
        "--unfused", action="store_true", help="time our engine without fusions as well"
    )
    parser.add_argument(
        "--naive", action="store_true", help="time numpy, one op at a time, as well"
    )
    _add_dim_option(parser)
    _add_padding_option(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=_shipped, help=f"path, or name of a shipped model: {_shipped_names()}"
    )


def _add_dim_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dim",
        action="append",
        type=usage.dim,
        default=[],
        metavar="NAME=SIZE",
        help="of a symbolic dim",
    )


def _add_padding_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--padding", action="store_true", help="random attention masks end in zeros"
    )


def _shipped(name: str) -> str:
    """The file of a model: its path, or that of the shipped one that has this name."""
    from q7x2_ep.models import small_models

    return name if os.path.isfile(name) else small_models().get(name, name)


def _shipped_names() -> str:
    from q7x2_ep.models import small_models

    return ", ".join(small_models())


def _check_exists(path: str) -> None:
    """A wrong name is the commonest mistake: say what there is, before anything heavy is loaded."""
    if not os.path.isfile(path):
        raise ModelNotFound(
            f"[model] expected a file, there is none at {path!r}; shipped models are "
            f"{_shipped_names()}"
        )


def _check_dims(options: argparse.Namespace) -> None:
    """Every --dim is to be a symbol of the model, of several models of one of them at least."""
    from q7x2_ep.models import small_models

    names = [options.model] if "model" in options else options.models or small_models()
    known: set[str] = set()
    for path in map(_shipped, names):
        _check_exists(path)
        known.update(_symbols(path))
    for name, _ in options.dim:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise FeedError(
                f"[dim {name!r}] expected a symbolic dim of the model's inputs, given {name!r}; "
                f"there are: {listed}"
            )


def _symbols(path: str) -> set[str]:
    """Of the dims of a model's inputs."""
    from q7x2_ep import importer
    from q7x2_ep.files import is_compiled
    from q7x2_ep.ir.shape import Expr, symbols
    from q7x2_ep.session import Session

    inputs = Session.open(path).inputs if is_compiled(path) else importer.read(path).inputs
    dims = [dim for each in inputs for dim in each.shape or ()]
    return {name for dim in dims if isinstance(dim, Expr) for name in symbols(dim)}


def _load_feeds(specifications: Sequence[str], archive: Optional[str] = None) -> dict[str, Any]:
    """Arrays from NAME=FILE.npy, and all of an .npz archive."""
    import numpy as np

    unreadable = (OSError, ValueError, EOFError, zipfile.BadZipFile)  # that numpy raises
    feeds: dict[str, Any] = {}
    if archive is not None:
        try:
            loaded = np.load(archive, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise ValueError("it holds one array, without a name")
            with loaded as arrays:
                feeds.update(arrays)
        except unreadable as error:
            raise FeedError(f"[feed] expected FILE.npz, given {archive!r}: {error}") from error
    for specification in specifications:
        name, _, file = specification.partition("=")
        try:
            feeds[name] = np.load(file, allow_pickle=False)
        except unreadable as error:
            raise FeedError(
                f"[input {name!r}] expected NAME=FILE.npy, given {specification!r}: {error}"
            ) from error
    return feeds


def _open(path: str) -> Any:
    if path == "-":
        return contextlib.nullcontext(sys.stdout)
    return open(path, "w", encoding="utf-8", newline="")


def _drop_output() -> None:
    """Where stdout cannot be written, Python is not to try once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plot(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Bars of time relative to onnxruntime, one group a row, labelled with the median in ms."""
    pyplot = _pyplot("bench", path)
    bars = [("q7x2_ep", "ours_ms", "tab:blue"), ("q7x2_ep unfused", "unfused_ms", "tab:cyan")]
    bars = [bar for bar in bars if rows[0][bar[1]] is not None]
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(rows) + 2), 4.5))
    width = 0.8 / len(bars)
    for i, (label, key, color) in enumerate(bars):
        positions = [x + (i - (len(bars) - 1) / 2) * width for x in range(len(rows))]
        heights = [row[key] / row["onnxruntime_ms"] for row in rows]
        drawn = axes.bar(positions, heights, width * 0.92, label=label, color=color)
        axes.bar_label(drawn, [f"{row[key]:.2g}" for row in rows], fontsize=7, padding=2)
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--", label="onnxruntime")
    axes.set_xticks(range(len(rows)))
    labels = [f"{row['model']}\n{row['feed']}\nthreads {row['threads']}" for row in rows]
    axes.set_xticklabels(labels, fontsize=7)
    axes.set_ylabel("time / onnxruntime's (lower is better)\nlabels: median ms")
    axes.margins(y=0.1)
    axes.legend(fontsize=8, ncol=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def _plot_arena(explanation: q7x2_ep.Explanation, path: str) -> None:
    """Buffers as rectangles: steps from left to right, addresses from bottom to top."""
    pyplot = _pyplot("explain", path)
    figure, axes = pyplot.subplots(figsize=(11, 6))
    for i, buffer in enumerate(explanation.arena):
        corner = (buffer.first - 0.5, buffer.offset / 1024)
        width, height = buffer.last - buffer.first + 1, buffer.bytes / 1024
        color = f"C{i % 10}"
        axes.add_patch(
            pyplot.Rectangle(corner, width, height, facecolor=color, edgecolor="white", alpha=0.8)
        )
        if buffer.bytes * 24 > explanation.arena_bytes:
            axes.annotate(
                buffer.name, corner, fontsize=5, xytext=(2, 2), textcoords="offset points"
            )
    axes.set_xlim(-0.5, max(len(explanation.steps), 1) - 0.5)
    axes.set_ylim(0, max(explanation.arena_bytes, 1) / 1024)
    axes.set_xlabel("step")
    axes.set_ylabel("offset in the arena, KiB")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def _pyplot(command: str, path: str) -> Any:
    """matplotlib, which can draw to a file of that name."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise q7x2_ep.BackendError(
            f"[{command} --plot] needs matplotlib; pip install 'q7x2_ep[bench]'"
        ) from error
    formats = sorted(pyplot.figure().canvas.get_supported_filetypes())
    pyplot.close()
    if Path(path).suffix[1:].lower() not in formats:
        raise FeedError(
            f"[{command} --plot] expected a file whose name ends in one of {', '.join(formats)}, "
            f"given {path!r}"
        )
    return pyplot


if __name__ == "__main__":
    raise SystemExit(main())
