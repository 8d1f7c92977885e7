"""Kinds of groups, and messages of a group that fails."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from support import check, refuses
from thread_ranks import Hang, on_ranks, try_on_ranks

from fibration import RanksError
from fibration.runtime.ranks.group import as_group, is_group


@pytest.fixture
def world():
    """A group of torch.distributed with this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_torch_group_and_a_mesh_of_one_dimension_are_accepted(world):
    mesh = dist.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    for given in (world, mesh):
        assert is_group(given)
        group = as_group(given)
        assert (group.rank, group.size) == (0, 1)
        assert group.all_gather(torch.arange(3), "numbers").tolist() == [[0, 1, 2]]
        assert group.all_gather_object({"a": 1}, "words") == [{"a": 1}]
    mesh = dist.init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("dp", "cp", "tp"))
    refuses(
        RanksError,
        lambda: as_group(mesh),
        what="a device mesh of 3 dimensions",
        remedy=(
            "along which ranks have different tokens, as mesh['dp']",
            "flatten them, as mesh['dp', 'cp']._flatten()",
        ),
    )
    assert as_group(mesh["dp"]).size == as_group(mesh["dp", "cp"]._flatten()).size == 1
    unnamed = dist.init_device_mesh("cpu", (1, 1))
    refuses(RanksError, lambda: as_group(unnamed), remedy="name its dimensions (mesh_dim_names=)")
    refuses(RanksError, lambda: as_group(dist.GroupMember.NON_GROUP_MEMBER), what="not a member of the group")


@pytest.mark.parametrize("given", [None, 3, ["a", "b"], torch.zeros(3), {"a": "b"}], ids=repr)
def test_labels_given_as_group_are_refused(given):
    assert not is_group(given)
    refuses(
        RanksError,
        lambda: as_group(given),
        what="the group is a",
        required="rank, size, all_gather and all_gather_object",
    )


@pytest.mark.parametrize("size", [1, 3])
def test_a_group_of_threads_gathers(size):
    def work(given):
        group = as_group(given)
        gathered = group.all_gather(torch.full((2,), given.rank), "ranks")
        return group.rank, group.size, gathered.tolist(), group.all_gather_object(str(given.rank), "names")

    expected = [[r, r] for r in range(size)]
    assert on_ranks(size, work) == [(r, size, expected, [str(i) for i in range(size)]) for r in range(size)]


def test_a_group_that_returns_one_stacked_tensor_is_accepted():
    class One:
        rank, size = 0, 1

        def all_gather(self, tensor):
            return tensor[None]

        def all_gather_object(self, obj):
            return (obj,)

    assert as_group(One()).all_gather(torch.ones(2), "ones").tolist() == [[1, 1]]
    assert as_group(One()).all_gather_object(1, "a number") == [1]


def test_a_rank_that_ends_is_named_by_the_others():
    def work(given):
        if given.rank == 1:
            raise KeyboardInterrupt
        as_group(given).all_gather(torch.zeros(1), "the sums of tokens")

    ran = try_on_ranks(3, work, lost=TimeoutError("10 s"))
    assert isinstance(ran.errors[1], KeyboardInterrupt)
    for rank in (0, 2):
        check(
            ran.errors[rank],
            RanksError,
            what=f"the sums of tokens: rank {rank} could not gather from the 3 ranks",
            required="the same calls in the same order",
            found="TimeoutError: 10 s",
            remedy="a rank that ended",
        )


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), ("0", 1), (0, lambda: 1)])
def test_a_rank_outside_the_group_is_refused(rank, size):
    class Wrong:
        all_gather = all_gather_object = list

    Wrong.rank, Wrong.size = rank, size
    refuses(RanksError, lambda: as_group(Wrong), what=("rank", "size"), required="two whole numbers")


def test_results_of_a_group_with_a_wrong_form_are_refused():
    class Wrong:
        rank, size = 0, 2

        def all_gather(self, tensor):
            return [tensor, tensor.float()]

        def all_gather_object(self, obj):
            return [obj]

    refuses(
        RanksError,
        lambda: as_group(Wrong()).all_gather(torch.zeros(1, dtype=torch.float64), "sums"),
        what="sums: ranks sent different tensors",
        found="torch.float32 from rank 1",
    )
    refuses(
        RanksError,
        lambda: as_group(Wrong()).all_gather_object("a", "words"),
        what="words: gathered from 1 ranks",
        required="2",
    )


def test_the_error_for_a_hang_names_the_waiting_and_the_ended_ranks():
    with pytest.raises(Hang, match=r"ranks 0, 2 wait, and ranks 1 have ended[\s\S]*all_gather"):
        try_on_ranks(3, lambda g: g.rank == 1 or g.all_gather(torch.zeros(1)))
    with pytest.raises(Hang, match=r"different things: all_gather \[1\].*, all_gather \[2\]"):
        try_on_ranks(2, lambda g: g.all_gather(torch.zeros(1 + g.rank)))
    with pytest.raises(Hang, match=r"different things: all_gather .*, all_gather_object"):
        try_on_ranks(2, lambda g: g.all_gather(torch.zeros(1)) if g.rank else g.all_gather_object(1))


def test_writing_to_a_received_tensor_is_noticed():
    with pytest.raises(AssertionError, match="written to"):
        on_ranks(2, lambda g: g.all_gather(torch.zeros(2))[0].add_(1))


def test_traffic_is_counted():
    ran = try_on_ranks(2, lambda g: (g.all_gather(torch.zeros(3)), g.all_gather_object(1), g.all_gather(torch.ones(1))))
    assert (ran.traffic.tensors, ran.traffic.objects) == ([12, 4], 1)


@pytest.mark.thorough
def test_the_library_works_with_a_torch_without_distributed():
    script = """
import torch.distributed
torch.distributed.is_available = lambda: False
for name in ("ProcessGroup", "DeviceMesh", "GroupMember", "init_device_mesh"):
    delattr(torch.distributed, name)
from fibration.runtime.ranks.group import as_group, is_group
class One:
    rank, size = 0, 1
    all_gather = all_gather_object = staticmethod(lambda given: [given])
assert is_group(One()) and not is_group("a") and as_group(One()).all_gather_object(2, "two") == [2]
"""
    subprocess.run([sys.executable, "-c", script], check=True)
