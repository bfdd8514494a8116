"""Decision trees as the tables that csrc/ops/forest.c goes down, which the ops of trees.py make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Optional

import numpy as np

from q7x2_ep.errors import ModelError, UnsupportedOp

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "MEMBER")
LEAF, MEMBER = len(MODES), MODES.index("MEMBER")
UNORDERED, LESS, EQUAL, GREATER = 1, 2, 4, 16  # bits of a test: 1 << order, as forest.c has it
ALL = UNORDERED | LESS | EQUAL | GREATER
TESTS = np.array(  # by mode
    [LESS | EQUAL, LESS, EQUAL | GREATER, GREATER, EQUAL, UNORDERED | LESS | GREATER, EQUAL]
)
MERGES = {"SUM": np.add, "AVERAGE": np.add, "MIN": np.minimum, "MAX": np.maximum}
BINARIES = {LESS: "less", LESS | EQUAL: "less_equal"}
FEATURE = 5  # bits below the number of a feature
NODE_DTYPES = {
    dtype: np.dtype([("split", dtype), ("test", "<i4"), ("next", "<i4", 2)], align=True)
    for dtype in ("float32", "float64")
}
BALLOT = np.dtype([("weight", "<f8"), ("target", "<i4"), ("counts", "<i2"), ("more", "<i2")])


class Votes(NamedTuple):
    """What leaves vote for; a leaf may have any number of them, more than one for a target too."""

    leaves: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


class Forest(NamedTuple):
    """The tables, as csrc/ops/forest.c describes them; nodes and votes as rows of int32. inner: how
    many nodes come before the leaves. features: how many the tests may ask for. binary: the
    comparison that all of them make, if it is one.
    """

    nodes: np.ndarray
    roots: np.ndarray
    votes: np.ndarray
    inner: int
    features: int
    binary: Optional[str]


class Trees(NamedTuple):
    """Trees as arrays over all nodes, leaves among them.

    true, false: the nodes that follow; of leaves they say nothing. tracks_true: where NaN goes.
    members: what the nodes of mode MEMBER test for, by node.
    """

    roots: np.ndarray
    modes: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    true: np.ndarray
    false: np.ndarray
    tracks_true: Optional[Sequence[int]]
    members: Mapping[int, np.ndarray] = MappingProxyType({})


def forest(trees: Trees, votes: Votes, targets: int, aggregate: str) -> Forest:
    """Raises: ModelError for links and votes to what is not there, and for trees without an end."""
    count, is_leaf = len(trees.modes), trees.modes == LEAF
    inner, leaves = np.flatnonzero(~is_leaf), np.flatnonzero(is_leaf)
    links = np.stack([trees.false[inner], trees.true[inner]], 1)
    if not all(within(at, count) for at in (trees.roots, links, votes.leaves)):
        raise ModelError("a tree names a node that is not there")
    if not within(votes.targets, targets):
        raise ModelError(f"a tree votes for a target that is not one of {targets}")
    features = trees.features[inner]
    if not within(features, 1 << 31 - FEATURE):
        raise UnsupportedOp(f"a tree tests feature {features.max()}")
    place = np.empty(count, np.int64)
    place[inner], place[leaves] = np.arange(len(inner)), ~np.arange(len(leaves))
    links = place[links]
    _check_ends(links)
    members = {int(place[node]): found for node, found in trees.members.items()}
    tests, splits = _tests(trees, inner)
    tests, features, splits, links = _with_members(tests, features, splits, links, members)
    turns = tests & LESS == 0  # `>` is what `<=` is not
    tests = np.where(turns, tests ^ ALL, tests)
    links = np.where(turns[:, None], links[:, ::-1], links)
    kinds = set((tests & ~UNORDERED).tolist())
    own = is_leaf[votes.leaves]  # no row ends elsewhere
    ballots = Votes(~place[votes.leaves[own]], votes.targets[own], votes.weights[own])
    first, table = _ballots(ballots, len(leaves), aggregate)
    nodes = np.zeros(len(tests) + len(leaves), NODE_DTYPES[splits.dtype.name])
    ends = np.arange(len(tests), len(nodes))
    nodes["split"] = np.concatenate([splits, np.full(len(leaves), np.nan, splits.dtype)])
    nodes["test"][: len(tests)] = features << FEATURE | tests
    nodes["next"] = np.concatenate([_behind(links, len(tests)), np.stack([ends, first], 1)])
    return Forest(
        nodes.view(np.int32).reshape(len(nodes), -1),
        _behind(place[trees.roots], len(tests)).astype(np.int32),
        table.view(np.int32).reshape(len(table), -1),
        len(tests),
        int(features.max(initial=0)) + 1,
        BINARIES.get(kinds.pop()) if len(kinds) == 1 else None,
    )


def _behind(links: np.ndarray, inner: int) -> np.ndarray:
    """~leaf as the node that it is behind the inner ones."""
    return np.where(links < 0, inner + ~links, links)


def within(at: np.ndarray, count: int) -> bool:
    """Whether all of these are places in an array of so many."""
    return bool(at.min(initial=0) >= 0 and at.max(initial=-1) < count)


def _check_ends(links: np.ndarray) -> None:
    """Takes away nodes that nothing left leads to, until nothing is left: else they go in rings."""
    parents = np.bincount(links[links >= 0], minlength=len(links))
    found, left = np.flatnonzero(parents == 0), len(links)
    place = np.empty_like(parents)
    while len(found):
        left -= len(found)
        children = links[found].reshape(-1)
        children = children[children >= 0]
        np.subtract.at(parents, children, 1)
        children = children[parents[children] == 0]
        place[children] = numbers = np.arange(len(children))
        found = children[place[children] == numbers]  # once each
    if left:
        raise ModelError("a tree leads back to a node of its own")


def _tests(trees: Trees, inner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bits of tests, and splits. Beside a split that is NaN the order of numbers is another one
    than that of NaN; such a test always gives the same.
    """
    modes, splits = trees.modes[inner], trees.splits[inner].copy()
    tests = TESTS[modes]
    constant = np.isnan(splits) & (modes != MEMBER)
    tests[constant] = np.where(tests & UNORDERED, ALL, 0)[constant]
    splits[constant] = 0
    if trees.tracks_true is not None:
        tracks = np.zeros(len(trees.modes), bool)
        tracks[: len(trees.tracks_true)] = trees.tracks_true
        tests |= np.where(tracks[inner], UNORDERED, 0)
    return tests, splits


def _with_members(
    tests: np.ndarray,
    features: np.ndarray,
    splits: np.ndarray,
    links: np.ndarray,
    members: dict[int, np.ndarray],
) -> list[np.ndarray]:
    """Nodes whose tests are for members, by place in these, as chains of one node for each."""
    tests, splits, links = tests.copy(), splits.copy(), links.copy()
    more: list[tuple] = []
    for i, found in members.items():
        end, true = links[i].tolist()
        if not len(found):
            tests[i] &= UNORDERED
            continue
        first = len(tests) + len(more)
        *falses, last = [*range(first, first + len(found) - 1), end]
        splits[i], links[i, 0] = found[0], falses[0] if falses else last
        nexts = [*falses[1:], last]
        more += [(EQUAL, features[i], m, (false, true)) for m, false in zip(found[1:], nexts)]
    parts = zip((tests, features, splits, links), zip(*more)) if more else ()
    joined = [np.concatenate([some, np.array(rest, some.dtype)]) for some, rest in parts]
    return joined or [tests, features, splits, links]


def _ballots(votes: Votes, leaves: int, aggregate: str) -> tuple[np.ndarray, np.ndarray]:
    """The first one of each leaf, and all of them: by leaf, one for a target of each."""
    merge = MERGES[aggregate]
    silent = np.flatnonzero(np.bincount(votes.leaves, minlength=leaves) == 0)
    leaf, target, weight = (
        np.concatenate([part, np.zeros(len(silent), part.dtype)]) for part in votes
    )
    leaf[len(votes.leaves) :] = silent
    span = int(target.max(initial=0)) + 1
    key = leaf * span + target
    first = which = np.arange(len(key))
    if (key[1:] <= key[:-1]).any():
        key, first, which = np.unique(key, return_index=True, return_inverse=True)
    table = np.zeros(len(key), BALLOT)
    table["weight"] = weight[first]
    again = np.delete(np.arange(len(leaf)), first)
    merge.at(table["weight"], which[again], weight[again])
    table["target"] = key % span
    table["counts"] = first < len(votes.leaves)
    table["more"][:-1] = key[1:] // span == key[:-1] // span
    return np.searchsorted(key // span, np.arange(leaves)), table
