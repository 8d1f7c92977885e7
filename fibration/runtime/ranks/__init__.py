"""A batch over ranks: their group, checks that must agree on all ranks, and collectives.

A `Group` (group.py) gathers from all ranks, with errors that name what was gathered. `RankElements` lists, per
coarser stratum, the elements of which each rank has tokens. `Shards` (shards.py) has the group and these lists, and
runs a plan's collectives. Each rank sends its `Shard`, and computes the same `WholeBatch` from all of them (merge.py).
An index (index/spread.py) has one rank's tokens and the `Shards`.

Ranks communicate in a fixed order: first 16 bytes (`agreed`), after which all continue or all raise; then an
object, for an index or an error; then one tensor per collective of the plan. `Spread` (compiler/plan.py) says at
compile time whether rows are whole or cut.
"""
