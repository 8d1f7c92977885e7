"""A batch spread over ranks: the group they form, what they agree on, and what is put together from all of them.

From small to large: a `Ranked` (group.py) is the group that was given, with errors that say what was gathered. Of every
coarser stratum a `Held` says which elements each rank has tokens of; `Ranks` (collect.py) is the group with these, and
carries out a plan's collectives. Each rank says a `Part` of the batch, from which each works out the same `Whole`
(merge.py); a `SpreadIndex` (index/spread.py) is one rank's tokens over that, and has the `Ranks`.

Ranks meet in one order: a word of 16 bytes (agreement.py), by which all go on or all raise; an object, where an index
is made or an error is told; then a tensor for every collective of the plan. `Spread` (compiler/plan.py) is what a plan
knows of this when it is compiled: whether rows are whole or cut.
"""
