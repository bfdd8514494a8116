"""Two result files of bench/models.py side by side: python bench/compare.py old.jsonl new.jsonl.

For every model, feed and number of threads in both: our time then and now, and onnxruntime's, which
should not have changed. Of several rows of a kind the last counts. Exit code 1 if one got 5 %
slower.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SLOWER = 1.05


def read(path: str) -> dict[tuple, dict]:
    rows = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    return {(row["model"], row["feed"], row["threads"]): row for row in rows}


def main(old_path: str, new_path: str) -> int:
    old, new = read(old_path), read(new_path)
    slower = 0
    print(
        f"{'model':<36}{'feed':>14}{'threads':>8}{'old ms':>10}{'new ms':>10}{'ratio':>7}{'ORT':>7}"
    )
    for key in sorted(old.keys() & new.keys()):
        ratio = new[key]["ours_ms"] / old[key]["ours_ms"]
        drift = new[key]["onnxruntime_ms"] / old[key]["onnxruntime_ms"]
        slower += ratio > SLOWER * max(drift, 1.0)
        model, feed, threads = key
        times = f"{old[key]['ours_ms']:>10.2f}{new[key]['ours_ms']:>10.2f}"
        print(f"{model[:35]:<36}{feed:>14}{threads:>8}{times}{ratio:>7.2f}{drift:>7.2f}")
    return 1 if slower else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
