"""Slips in `fibration/trainers`."""

from slips.slip import slip

SLIPS = (
    slip(
        "the importance weights are left out of the advantages", "trainers/test_window",
        "result = result.to(dtype) * times.to(dtype)", "result = result.to(dtype)",
    ),
    slip(
        "every rank has the coefficients of its own rows", "trainers/test_window",
        "spread: dict[str, Any] = {} if self.ranks is None else {GROUP: self.ranks}", "spread: dict[str, Any] = {}",
    ),
    slip(
        "on a fresh step the ratio is that to other log-probs", "trainers/test_window",
        "old = now if log_probs is None or self.old_log_probs is None else self.old_log_probs",
        "old = now if self.old_log_probs is None else torch.zeros_like(now)",
    ),
    slip(
        "what is under the mask is compared too", "trainers/test_window",
        "compared = self.mask if rows is None", "compared = torch.ones_like(self.mask) if rows is None",
    ),
    slip(
        "elements above the tokens are counted once per rank", "trainers/test_window",
        "leaves = [self._strata.index(leaf) for leaf in self.index.leaves if leaf in self._strata]",
        "leaves = list(range(len(self._strata)))",
    ),
    slip(
        "tokens of other ranks are left out of what changed", "trainers/test_window",
        '"regimes of tokens").sum(0)', '"regimes of tokens")[0]',
    ),
    slip(
        "what is zeroed and what is rolled back is one regime", "trainers/test_window",
        "torch.where(gave == read, 0, torch.where(gave == 0, 1, 2))", "torch.where(gave == read, 0, 1)",
    ),
    slip(
        "the mean difference of a step is one rank's", "trainers/test_window",
        "torch.stack([*parts[:, :2].sum(0), parts[:, 2].amax()])", "torch.stack([*parts[0, :2], parts[:, 2].amax()])",
    ),
    slip(
        "rows of one key are trajectories of their own", "trainers/test_window",
        "self.ranks = as_group(Alone())", "labels = {k: v for k, v in labels.items() if k != op.hierarchy.rows.name}",
    ),
    slip(
        "data of one trajectory are trajectories of their own", "trainers/test_tinker",
        'indexed["group"] = Alone()', "del indexed[op.hierarchy.rows.name]",
    ),
    slip(
        "the prompts of Tinker's data are tokens too", "trainers/test_tinker",
        "mask=packed(MASK) != 0, attributes=given or None, **indexed)", "attributes=given or None, **indexed)",
    ),
    slip(
        "a further policy of Tinker's data is the old one", "trainers/test_tinker",
        "old, *others = (packed(field) for field in fields.values())",
        "old, *others = (packed(LOG_PROBS) for field in fields.values())",
    ),
    slip(
        "labels of Tinker may have no names", "trainers/test_tinker",
        "if given is not None and not isinstance(given, Mapping):\n        raise BatchError(", "if False:\n        raise BatchError(",
    ),
    slip(
        "parameters are left out of Tinker's loss", "trainers/test_tinker",
        "            parameters,\n            rewards=None if rewards", "            None,\n            rewards=None if rewards",
    ),
    slip(
        "Tinker's loss computes in float32", "trainers/test_tinker",
        "torch.cat(list(log_probs)).double(),", "torch.cat(list(log_probs)).float(),",
    ),
    slip(
        "a step without tokens is an error", "trainers/test_window",
        "self.index = op.index(mask=mask, **self._indexed) if self.tokens else None",
        "self.index = op.index(mask=mask, **self._indexed)",
    ),
    slip(
        "what sampled is corrected for in advantages that are given alone", "trainers/test_window",
        "return _weighted(self.mask, made, self.weights)", "return made",
    ),
    slip(
        "trainers give groups without gates no labels", "trainers/test_labels",
        "strata = (*reversed(hierarchy.order), *hierarchy.groups)", "strata = tuple(reversed(hierarchy.order))",
    ),
    slip(
        "a warning comes at every step", "trainers/test_window",
        "if before or not shares:", "if not shares:",
    ),
    slip(
        "dropout of attention is no noise", "runtime/test_noise",
        '("drop" in word or "jitter" in word)', '"jitter" in word',
    ),
    slip(
        "dropout that a forward pass reads of its config is no noise", "runtime/test_noise",
        "config if isinstance(config, Mapping) else getattr(config, \"__dict__\", {})",
        "config if isinstance(config, Mapping) else {}",
    ),
    slip(
        "log-probs of weights that have changed since are known", "trainers/test_known",
        "return self._by == (_weights(model), temperature) and", "return self._by is not None and",
    ),
    slip(
        "rows of other weights stay known", "trainers/test_known",
        "self._by, self._rows = by, set()\n", "self._by = by\n",
    ),
    slip(
        "of the rows asked for one has to be known", "trainers/test_known",
        "all(row in self._rows for row in _rows(used))", "any(row in self._rows for row in _rows(used))",
    ),
    slip(
        "what is known outranks what the user says", "trainers/test_labels",
        "given[name] if name in given else known[name]", "known[name] if name in known else given[name]",
    ),
    slip(
        "NaN is a label", "trainers/test_labels",
        "return None if isinstance(value, Tensor) or value != value else value",
        "return None if isinstance(value, Tensor) else value",
    ),
    slip(
        "trajectories of a trainer have labels", "trainers/test_parameters",
        "if node.over not in labelled:", 'if node.over == "batch":',
    ),
    slip(
        "at a ratio of 1 one value is everyone's", "trainers/test_parameters",
        "{None: next(iter(value.values())), **value}",
        "{None: next(iter(value.values()))}",
    ),
    slip(
        "a window that was broken off counts", "trainers/test_scale",
        "        self._handed = []\n", "        self._handed = self._handed\n",
    ),
    slip(
        "strata below the rows are labelled by row", "trainers/test_labels",
        "if stratum not in hierarchy.leaves and hierarchy.rows in hierarchy.coarser(stratum):",
        "if stratum in hierarchy.leaves and hierarchy.rows in hierarchy.coarser(stratum) and not hierarchy.gates:",
    ),
    slip(
        "a loss of half the scale passes", "trainers/test_scale",
        "if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):", "if not (abs(high - low) <= one.bound):",
    ),
    slip(
        "a token that is left out passes", "trainers/test_scale",
        "if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):", "if not abs(high - 1) <= one.bound:",
    ),
    slip(
        "advantages that are not used pass", "trainers/test_scale",
        "        if unused:\n", "        if len(unused) == len(found) > 1:\n",
    ),
    slip(
        "of two backward passes the last counts", "trainers/test_scale",
        "self.gradient = gradient if self.gradient is None else self.gradient + gradient", "self.gradient = gradient",
    ),
    slip(
        "the rank whose loss has another scale raises alone", "trainers/test_scale",
        'with agreed(None if group is None else as_group(group), "the scale of the loss"):', 'with agreed(None, "the scale"):',
    ),
    slip(
        "a division by micro-batches is left on", "trainers/test_advantages",
        "* (accumulation * ranks)", "* ranks",
    ),
    slip(
        "an average over ranks is left on", "trainers/test_advantages",
        "* (accumulation * ranks)", "* accumulation",
    ),
    slip(
        "a count is rounded to float32", "trainers/test_advantages",
        "count = torch.as_tensor(given, dtype=like.dtype,", "count = torch.as_tensor(given,",
    ),
    slip(
        "an empty micro-batch is divided by 0", "trainers/test_advantages",
        "not (0 < float(count)", "not (0 <= float(count)",
    ),
    slip(
        "a row without tokens needs a length", "trainers/test_advantages",
        "wrong = some & ~(", "wrong = ~(",
    ),
    slip(
        "rows are divided by the width of the batch", "trainers/test_advantages",
        "kept.flatten(1).sum(1) if lengths is None", "kept[0].numel() if lengths is None",
    ),
    slip(
        "a mask may lose coefficients", "trainers/test_advantages",
        "lost = (coefficients != 0) & (mask == 0)", "lost = (coefficients != 0) & (mask < 0)",
    ),
    slip(
        "what sampled may be weighed by the trainer and by the hierarchy", "trainers/test_window",
        "if weights is not None and ROLLOUT in passed(op.hierarchy):", "if False:",
    ),
    slip(
        "a fresh step of several policies has log-probs of 0", "trainers/test_window",
        "if log_probs is None and self.old_log_probs is None and self.op.hierarchy.policies:", "if False:",
    ),
    slip(
        "micro-batches that share an element over others are apart", "trainers/test_micro_batches",
        "if (first == before).all():", "if True:",
    ),
    slip(
        "an element that is on two ranks is whole on each", "trainers/test_micro_batches",
        "if ((here != whole.count(leaf, stratum).cpu().numpy()) & (here > 0)).any():", "if False:",
    ),
    slip(
        "each rank runs as few passes as it needs itself", "trainers/test_micro_batches",
        "firsts[::-1][: size - len(later)]", "[]",
    ),
    slip(
        "a part of J is not times the ranks", "trainers/test_micro_batches",
        "return part.values, part.objective * ranks", "return part.values, part.objective",
    ),
    slip(
        "every micro-batch has the whole J", "trainers/test_micro_batches",
        "now.new_zeros(()) if self._count else self._coef.objective", "self._coef.objective",
    ),
    slip(
        "a rank with an error leaves the others waiting", "trainers/test_micro_batches",
        "if ranks == 1:\n                raise", "if ranks:\n                raise",
    ),
    slip(
        "coefficients of a set are those of passes before", "trainers/test_micro_batches",
        "first = self._keep_first(rows, now)", "first = self._keep_first(rows[:0], now[:0])",
    ),
    slip(
        "dead rows whose log-probs count elsewhere are left out", "trainers/test_micro_batches",
        "(live if window.index is None else coupled_rows(window.index, live)).cpu()", "live.cpu()",
    ),
    slip(
        "a micro-batch of dead rows has no pass", "trainers/test_micro_batches",
        "self._stands_in = not live.any() and len(live) > 0", "self._stands_in = False",
    ),
    slip(
        "old log-probs are measured where a row has no pass", "trainers/test_micro_batches",
        "self._measured(window, bool(lacking))", "self._measured(window, False)",
    ),
    slip(
        "tokens of a level that is removed change their regime", "trainers/test_window",
        "s in h.gates and not isinstance(h.gates[s].expression, Number)", "s in h.gates",
    ),
    slip(
        "pieces of a trajectory are micro-batches of their own", "trainers/test_micro_batches",
        "return frozen and (self._rows_are_whole or not coupling.within)", "return frozen",
    ),
    slip(
        "a parameter of any unit takes the place of a trainer's clip range", "trainers/test_clip_range",
        "found[name] = value if alike else None", "found[name] = value",
    ),
    slip(
        "a gate that rolls back bounds ratios", "trainers/test_clip_range",
        "return [ratios[0] for ratios in found] if all(np.ptp(ratios) <= 1e-12 for ratios in found) else []",
        "return [ratios[0] for ratios in found]",
    ),
    slip(
        "of labels that a hierarchy does not take, the first is named", "trainers/test_labels",
        "if unknown := [name for name in given if name not in (*names, rows)]:",
        "if unknown := [name for name in given if name not in (*names, rows)][:1]:",
    ),
    slip(
        "what a trainer knows per token is a source of numbers per row", "trainers/test_attributes",
        "known = (of_tokens if is_per_token(hierarchy, attribute) else of_rows) or {}", "known = of_tokens or {}",
    ),
    slip(
        "rows of one label may have other numbers", "trainers/test_attributes",
        "if other != number:", "if False:",
    ),
    slip(
        "masked rows need a number", "trainers/test_attributes",
        "for row in used:\n        number = as_number(given[row])", "for row in range(len(given)):\n        number = as_number(given[row])",
    ),
    slip(
        "masked tokens need a number", "trainers/test_attributes",
        "wrong = there & ~values.isfinite()", "wrong = ~values.isfinite()",
    ),
    slip(
        "a policy of the user's takes the place of the trainer's own", "trainers/test_attributes",
        "if name not in further:", "if name not in reads:",
    ),
    slip(
        "a stand-in is a trained row", "trainers/test_micro_batches",
        "trained = passed[:0] if self._stands_in else passed", "trained = passed",
    ),
    slip(
        "rows without tokens are trained rows", "trainers/test_micro_batches",
        "counts = [int(self._filled[rows].sum()) for rows in (trained, planned)]", "counts = [len(trained), len(planned)]",
    ),
    slip(
        "metrics of trained rows have the names of those of all rows", "trainers/test_micro_batches",
        '**{f"live/{name}": number for name, number in of_live.items()}', "**of_live",
    ),
    slip(
        "metrics that are not finite are not counted", "trainers/test_micro_batches",
        'found = {**found, "nonfinite": float(len(wrong))}', "pass",
    ),
)  # fmt: skip
