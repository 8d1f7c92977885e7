"""Slips in what ranks exchange."""

from slips.slip import slip

SLIPS = (
    slip(
        "what fills up a rank's tokens counts in quantiles", "backends*quantiles",
        "pad(parent.double(), (0, room), value=float(NOWHERE))", "pad(parent.double(), (0, room), value=0.0)",
    ),
    slip(
        "a label is told by Python's hash, which each process seeds for itself", "ranks/test_labels",
        "found = np.frombuffer(b\"\".join([digest(canonical(label)) for label in labels]), \">u8\").astype(np.uint64)",
        "found = np.array([hash(label) % 2**64 for label in labels], np.uint64)",
    ),
    slip(
        "1 and '1' are one label", "ranks/test_labels",
        'str: lambda value: b"s" + value', 'str: lambda value: b"n" + value',
    ),
    slip(
        "two labels of one hash are one element", "ranks/test_bad_rank_index",
        "if names[one] != names[other]:", "if False:",
    ),
    slip(
        "what one rank says of an element is not compared with what another does", "ranks/test_bad_rank_index",
        "wrong = np.flatnonzero((origin[element] >= 0) & (known[element] != mine))", "wrong = np.flatnonzero(origin[element] < -1)",
    ),
    slip(
        "elements are numbered in the order of their hashes where rows have no keys", "ranks/test_rank_index",
        "        if not self.keyed:\n            order", "        if False:\n            order",
    ),
    slip(
        "elements are numbered as they come where rows have keys", "ranks/test_rank_index",
        "        if not self.keyed:\n            order", "        if True:\n            order",
    ),
    slip(
        "a turn that two ranks have lies in one row", "ranks/test_rank_index",
        "(inside[number] == NOWHERE) | (inside[number] == mine), mine, STRADDLES", "inside[number] == NOWHERE, mine, inside[number]",
    ),
    slip(
        "tokens of other ranks do not count", "ranks/test_rank_index",
        "total[number] += p.counts[edge]", "total[number] = p.counts[edge]",
    ),
    slip(
        "an error on one rank is raised there alone", "test_agreement",
        "            agree(group, what, said, error)\n        raise", "            pass\n        raise",
    ),
    slip(
        "the rank that an error came from is not named", "test_agreement test_calls",
        'f"rank {rank}: "\n', '""\n',
    ),
    slip(
        "ranks do not say which call they are in", "test_agreement test_calls",
        'said = {"the call": what, **said}', "said = dict(said)",
    ),
    slip(
        "a group that failed is asked again", "test_agreement",
        "    except RanksError:  # all ranks raise it, or the group failed: no rank waits\n        raise\n", "",
    ),
    slip(
        "a part that is not finite is cast to a whole number", "test_collect",
        "exact = multiples.abs() <= EXACT", "exact = torch.ones_like(multiples, dtype=torch.bool)",
    ),
    slip(
        "parts of sums are rounded before they are added up", "test_collect",
        "torch.where(exact, multiples, 0.0).long())", "torch.where(exact, multiples.float(), 0.0).long())",
    ),
    slip(
        "ranks may differ about an element that they share", "test_collect test_calls",
        "differs = (high != low)", "differs = (high < low)",
    ),
    slip(
        "a rank that fails leaves the others waiting", "test_collect test_calls",
        "for stage in stages[len(self._met) :]:", "for stage in stages[:0]:",
    ),
    slip(
        "a rank that fails joins the collectives that it has been at", "test_collect",
        "for stage in stages[len(self._met) :]:", "for stage in stages:",
    ),
    slip(
        "the collectives of the call before count in this one", "test_collect",
        "self._met.clear()", "self._met.copy()",
    ),
    slip(
        "what a failed rank sends is taken for numbers", "test_collect",
        "if devices.can_sync(gathered.device) and bool", "if not devices.can_sync(gathered.device) and bool",
    ),
    slip(
        "what one rank has of a row is one piece, whatever comes between", "ranks/test_positions",
        "~(same & (rank[1:] == rank[:-1]))", "~same",
    ),
    slip(
        "a piece ends where positions have a gap", "ranks/test_positions",
        "~(same & (rank[1:] == rank[:-1]))", "~(same & (rank[1:] == rank[:-1]) & (start[1:] == start[:-1] + size[:-1]))",
    ),
    slip(
        "a turn is ordered by the tokens that the last rank has of it", "ranks/test_positions",
        "first[number] = np.minimum(first[number], p.first[of])", "first[number] = p.first[of]",
    ),
    slip(
        "positions that two ranks have are not noticed in a run's middle", "ranks/test_positions",
        "(start[1:] < start[:-1] + size[:-1])", "(start[1:] == start[:-1])",
    ),
    slip(
        "what comes before a piece is discounted as if its pieces were tokens", "ranks/test_positions",
        "share = discount**self.tokens", "share = discount * self.tokens.sign()",
    ),
    slip(
        "a piece hands on its last sum without its last token", "ranks/test_positions",
        "return sums, discount * (sums[end] + x[end])", "return sums, discount * sums[end]",
    ),
    slip(
        "what comes into a piece is discounted as at its first token", "ranks/test_positions",
        "added = discount**at * torch.repeat", "added = torch.repeat",
    ),
    slip(
        "ranks carry what comes after as what comes before", "ranks/test_positions",
        "at = self.inside.before if node.forward else self.inside.after", "at = self.inside.before",
    ),
)  # fmt: skip
