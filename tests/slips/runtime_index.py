"""Slips in the index."""

from slips.slip import slip

SLIPS = (
    slip(
        "segments list their tokens as they lie, whatever their positions", "test_order test_positions",
        "            if listed.order is not None:\n", "            if False:\n",
    ),
    slip(
        "attributes per row are read by the number of the element", "test_operator.py hard_inputs test_index runtime/test_index.py",
        "array[places.row_numbers])", "array[: len(places.row_numbers)])",
    ),
    slip(
        "a segment without tokens starts at 0", "test_layout",
        "start = np.concatenate([[0], ends])[cuts[:-1]]", "start = np.zeros(segments, np.int64)",
    ),
    slip(
        "tokens of a segment are taken for neighbours", "test_layout hard_inputs",
        "((starts[1:] == ends[:-1]) | (segment[1:] != segment[:-1]))", "(starts[1:] >= ends[:-1])",
    ),
    slip(
        "tokens of a row are counted from its first place", "test_layout runtime/test_index.py",
        "np.where(run < 0, 0, self.before[run] + inside)", "np.where(run < 0, 0, self.before[run] + places - self.starts[run])",
    ),
    slip(
        "whole numbers are numbered in the order of their values", "runtime/test_index.py test_index",
        "order = np.sort(first[first >= 0])", "order = first[first >= 0]",
    ),
    slip(
        "a tensor is a label that equals itself alone", "runtime/test_index.py test_index bad_index",
        "if label is None or isinstance(label, Tensor) or label != label:", "if label is None or label != label:",
    ),
    slip(
        "a negative number is the label of a token where an array says so", "runtime/test_index_quiver test_index",
        "return None if per_token and labels.min(initial=0) < 0 else _of_integers(labels)", "return _of_integers(labels)",
    ),
    slip(
        "a negative whole number is not seen behind its equal", "runtime/test_index.py test_index",
        "per_token and isinstance(label, Number) and label != abs(label)", "per_token and isinstance(label, int) and label < 0",
    ),
    slip(
        "an index has a number per token though rows are labelled", "integers_per_token",
        "spans, of_rows = self.spans[leaf], self.of_rows(leaf, segments)", "spans, of_rows = self.spans[leaf], None",
    ),
    slip(
        "where tokens lie is a number for each", "integers_per_token",
        "edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))",
        "edges = np.flatnonzero(np.diff(keep.astype(int), prepend=0, append=0))",
    ),
    slip(
        "a copy of an index has the number of the other", "test_compiled",
        "self.__post_init__()  # every copy has its own handle", "pass",
    ),
    slip(
        "rows without tokens are elements", "hard_inputs test_operator runtime/test_index.py",
        "self.row_numbers = np.flatnonzero(np.diff(before))", "self.row_numbers = np.arange(len(before) - 1)",
    ),
    slip(
        "masked tokens count in the batch", "hard_inputs test_operator metrics",
        "torch.tensor([self.size[of]], device=self.device).double()",
        "torch.tensor([int(np.prod(self.shape)) if of in self.leaves else self.size[of]]).double()",
    ),
    slip(
        "what is assumed to be populated is not looked at", "index*assumed",
        "empty = (index.count(of, over) == 0).nonzero()", "empty = (index.count(of, over) < 0).nonzero()",
    ),
    slip(
        "no batch is out of balance", "index*assumed",
        "<= TOLERANCE * np.maximum(given, asked)] = 0", "<= 2 * np.maximum(given, asked)] = 0",
    ),
    slip(
        "paths are not compared where they may disagree", "index*quiver",
        "    if not h.shape.is_tree:\n        paths_agree(index)", "    if h.shape.is_tree:\n        paths_agree(index)",
    ),
    slip(
        "a row is called what another row's element is", "ranks/test_rank_index",
        "label = self.labels[rows][element]", "label = self.labels[rows][number]",
    ),
    slip(
        "masses of other ranks' tokens are left out", "ranks/test_rank_index",
        "        if self.ranks is None or source not in self.leaves:\n            return mine", "        if True:\n            return mine",
    ),
    slip(
        "an index over ranks counts its own tokens alone", "ranks/test_rank_index",
        "if self.ranks is not None and (of, over) in self.ranks.counts:", "if False:",
    ),
    slip(
        "an element without tokens on a rank has its first row", "ranks/test_rank_index",
        "row = torch.full((self.size[segments],), -1, dtype", "row = torch.full((self.size[segments],), 0, dtype",
    ),
    slip(
        "rows of one key on one rank are not cut", "ranks/test_rank_index",
        "cut=len(np.unique(pieces)) < len(pieces)", "cut=False",
    ),
    slip(
        "a micro-batch has the elements of the step in their order there", "runtime/test_micro",
        "    order = used[np.argsort(first)]\n    number =", "    order = used\n    number =",
    ),
    slip(
        "a micro-batch has its rows in their order there", "runtime/test_micro",
        "        mine = number[chosen][filled]", "        mine = np.sort(number[chosen][filled])",
    ),
    slip(
        "a micro-batch has the attributes of the first tokens", "runtime/test_index_quiver",
        "(np.cumsum(is_of) - 1)[tokens[is_of[tokens]]]", "np.arange(is_of[tokens].sum())",
    ),
    slip(
        "a micro-batch forgets what rows are called", "runtime/test_micro",
        "    if named:\n        names", "    if False:\n        names",
    ),
    slip(
        "a micro-batch forgets in which order its tokens come", "runtime/test_micro",
        "positions = None if whole.given_positions is None else whole.given_positions[tokens]", "positions = None",
    ),
    slip(
        "a micro-batch has counts of its own", "runtime/test_micro",
        "return self.taken(self.whole.count(of, over), over)", "return super().count(of, over)",
    ),
    slip(
        "a micro-batch has a rank's share of J", "runtime/test_micro",
        "    @property\n    def shares(self) -> int:\n        return 1\n", "",
    ),
    slip(
        "a row lives by its own advantages alone", "runtime/test_live",
        "found[a][index.parent(leaf, a.over)]", "nonzero if index.tokens_of(leaf) is None else of_leaf[leaf]",
    ),
    slip(
        "a rank knows its own advantages alone", "runtime/test_live",
        "Stratum(a.over))):\n        found = ", "Stratum(a.over))):\n        _ = ",
    ),
    slip(
        "an element may be cut by micro-batches", "runtime/test_micro",
        "np.flatnonzero((here != every) & (here > 0))", "np.flatnonzero((here != every) & (here < 0))",
    ),
    slip(
        "pieces of a row are whole rows", "runtime/test_micro",
        "within = coupling.within if whole.ranks is not None else ()", "within = ()",
    ),
    slip(
        "parameters of a micro-batch go by its own elements", "runtime/test_micro",
        "v if len(v) == 1 else v[index.elements[n.over]]", "v if len(v) == 1 else v[: len(index.elements[n.over])]",
    ),
    slip(
        "a micro-batch may have other parameters than the frozen sums", "runtime/test_micro",
        "if not np.array_equal(numbers, now[node]):", "if False:",
    ),
    slip(
        "an index that moved keeps what was worked out elsewhere", "runtime/test_index_to",
        "values=values, device=target, _cache={})", "values=values, device=target)",
    ),
    slip(
        "totals are copied to the device for every micro-batch", "runtime/test_index.py",
        "    @once\n    def total(self, attribute: Attribute, over: str) -> Tensor:\n        \"\"\"", "    def total(self, attribute: Attribute, over: str) -> Tensor:\n        \"\"\"",
    ),
    slip(
        "a rank's gradient is scaled as that of one process", "ranks/test_training",
        "return self.group.size if self.group else 1", "return 1",
    ),
    slip(
        "names of rows are per token where there are as many", "test_index_quiver",
        "return stratum != self.h.rows and not self.h.shape.is_chain", "return not self.h.shape.is_chain",
    ),
    slip(
        "rows without keys have the numbers of their rank", "test_bad_rank_index",
        "if self.spread and stratum == self.rows and not self.keyed:", "if False:",
    ),
    slip(
        "positions are not read where an element has several rows", "test_positions",
        "return numbers if self.given_positions is None else self.given_positions[numbers]", "return numbers",
    ),
    slip(
        "an element is ordered by its last token", "test_positions",
        "np.minimum.at(first, self.parent(leaf, of).cpu().numpy(), keys)", "np.maximum.at(first, self.parent(leaf, of).cpu().numpy(), keys)",
    ),
    slip(
        "positions may stay the same along a row", "test_positions",
        "falls = mine[1:] <= mine[:-1]", "falls = mine[1:] < mine[:-1]",
    ),
    slip(
        "positions ascend from one row to the next", "test_positions",
        "falls[every.before[1:-1] - 1] = False", "falls[every.before[1:-1]] = False",
    ),
    slip(
        "rows that are interleaved are read one after the other", "test_positions",
        "if of_rows is not None and (self.given_positions is None or not self.in_several_rows(target).any()):", "if of_rows is not None:",
    ),
    slip(
        "groups are counted in labels of tokens where there are as many", "test_groups",
        "        if stratum in self.h.groups:\n            return False\n", "",
    ),
    slip(
        "a group of one is compared with nobody", "test_bad_rewards",
        "alone = (index.count(of, over) == 1).nonzero()", "alone = (index.count(of, over) == 0).nonzero()",
    ),
    slip(
        "a slice skips rows that do not exist", "runtime/test_micro",
        "if outside or (not len(found) and n_rows and", "if False and (True and",
    ),
    slip(
        "a label per row makes a row one turn", "runtime/test_bad_index",
        "if not per_token and ((between and n_rows) or", "if not per_token and (",
    ),
)  # fmt: skip
