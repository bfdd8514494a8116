"""Decision trees as arrays, which the ops of trees.py make and share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from q7x2_ep.errors import ModelError

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "MEMBER")
LEAF = len(MODES)
COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
VISITS = 1 << 20  # places in trees that are held at once


class Forest:
    """The trees: arrays over all nodes, leaves among them, and the votes of the leaves.

    true, false: the nodes that follow. tracks_true: where NaN goes. votes: leaf, target, weight.
    members: what the nodes of mode MEMBER test for, by node.
    """

    def __init__(
        self,
        roots: np.ndarray,
        modes: np.ndarray,
        features: np.ndarray,
        splits: np.ndarray,
        true: np.ndarray,
        false: np.ndarray,
        tracks_true: Optional[Sequence[int]],
        votes: tuple[np.ndarray, np.ndarray, np.ndarray],
        targets: int,
        members: Optional[dict[int, np.ndarray]] = None,
    ):
        here = np.arange(len(modes))
        is_leaf = modes == LEAF
        self.roots, self.modes, self.targets = roots, modes, targets
        self.features = np.where(is_leaf, 0, features)
        self.splits, self.members = splits, members or {}
        self.true, self.false = np.where(is_leaf, here, true), np.where(is_leaf, here, false)
        self.tracks_true = np.zeros(len(modes), bool)
        if tracks_true:
            self.tracks_true[: len(tracks_true)] = tracks_true
        self.votes = votes
        if not all(0 <= at.min(initial=0) <= at.max(initial=0) < len(modes) for at in self._links):
            raise ModelError("a tree names a node that is not there")
        if len(votes[1]) and not 0 <= votes[1].min() <= votes[1].max() < targets:
            raise ModelError(f"a tree votes for a target that is not one of {targets}")

    @property
    def _links(self) -> tuple[np.ndarray, ...]:
        return self.roots, self.true, self.false, self.votes[0]

    def __repr__(self) -> str:
        return f"{len(self.roots)} trees of {len(self.modes)} nodes"

    def leaves(self, x: np.ndarray) -> np.ndarray:  # (N, F) -> (N, T)
        at = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        rows = np.arange(len(x))[:, None]
        used = [mode for mode in range(LEAF) if (self.modes == mode).any()]
        while (self.modes[at] != LEAF).any():
            values, holds = x[rows, self.features[at]], np.zeros(at.shape, bool)
            for mode in used:
                chosen = self.modes[at] == mode
                holds |= chosen & self._compare(mode, values, at)
            holds |= np.isnan(values) & self.tracks_true[at]
            at = np.where(holds, self.true[at], self.false[at])
        return at

    def _compare(self, mode: int, values: np.ndarray, at: np.ndarray) -> np.ndarray:
        if mode < len(COMPARE):
            return COMPARE[mode](values, self.splits[at])
        holds = np.zeros(at.shape, bool)
        for node, members in self.members.items():
            holds |= (at == node) & np.isin(values, members)
        return holds

    def collect(self, x: np.ndarray, aggregate: str) -> tuple[np.ndarray, np.ndarray]:
        """The votes of each row for each target as one number, and whether there were any."""
        merge = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
        start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        nodes, targets, weights = self.votes
        table = np.full((len(self.modes), self.targets), start)
        merge.at(table, (nodes, targets), weights)
        any_votes = np.zeros(table.shape, bool)
        any_votes[nodes, targets] = True
        scores, voted = (
            np.full((len(x), self.targets), start),
            np.zeros((len(x), self.targets), bool),
        )
        rows = max(VISITS // max(len(self.roots), 1), 1)
        for i in range(0, len(x), rows):
            part = slice(i, i + rows)
            for at in self.leaves(x[part]).T:
                scores[part] = merge(scores[part], table[at])
                voted[part] |= any_votes[at]
        if aggregate == "AVERAGE":
            scores /= max(len(self.roots), 1)
        return np.where(voted, scores, 0.0), voted
