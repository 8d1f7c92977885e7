"""An error on one rank is an error on all, and the message names the difference between ranks."""

import pytest
from support import check
from thread_ranks import on_ranks, try_on_ranks

from fibration import BatchError, LawError, RanksError
from fibration.runtime.ranks.group import agreed, as_group, digest


def together(size, body, what="the call"):
    """What every rank raises, where `body(rank, said)` is what they agree on."""

    def work(given):
        with agreed(as_group(given), what) as said:
            body(given.rank, said)

    return try_on_ranks(size, work)


def failing(errors):
    """A body that raises on some ranks."""

    def body(rank, said):
        said["epsilon"] = f"0.{rank}"  # an error comes before what differs
        if rank in errors:
            raise errors[rank]

    return body


def test_the_first_of_several_errors_is_raised_and_the_others_are_noted():
    own = ValueError("three")
    ran = together(4, failing({1: BatchError("one"), 2: LawError("two"), 3: own}))
    for rank, raised in enumerate(ran.errors):
        assert type(raised) is BatchError and raised.what == "rank 1: one"
        assert raised.__notes__ == ["rank 2: two", "rank 3: ValueError: three"]
        assert (raised.__cause__ is own) == (rank == 3)


def test_an_error_of_a_users_subclass_is_raised_as_the_librarys_class():
    class Own(BatchError):
        pass

    (here, there) = together(2, failing({0: Own("mine")})).errors
    assert type(here) is type(there) is BatchError and there.what == "rank 0: mine"


def test_an_argument_of_one_rank_alone_is_named():
    ran = together(2, lambda rank, said: said.update({"epsilon": "0.2"} if rank else {}))
    check(ran.errors[0], RanksError, what="ranks differ in epsilon", found="nothing on rank 0; 0.2 on rank 1")


def test_a_group_that_failed_receives_no_more_messages():
    def work(given):
        group = as_group(given)
        with agreed(group, "the call"):
            if given.rank == 0:
                raise KeyboardInterrupt  # nobody is told of that
            raise RanksError("all ranks have seen it")

    ran = try_on_ranks(2, work)
    assert isinstance(ran.errors[0], KeyboardInterrupt) and ran.errors[1].what == "all ranks have seen it"
    assert ran.traffic.sent == []


def test_without_a_group_an_error_is_raised_unchanged():
    error = ValueError("a")
    with pytest.raises(ValueError, match="a") as caught, agreed(None, "the call"):
        raise error
    assert caught.value is error


def test_different_words_have_different_digests():
    words = [{}, {"a": "b"}, {"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"a": "\ud800"}, {"a": "', 'b"}]
    assert len({digest(w) for w in words}) == len(words)
    assert digest({"a": "1", "b": "2"}) == digest({"b": "2", "a": "1"})
    assert on_ranks(2, lambda g: digest({"a": "b"})) == [digest({"a": "b"})] * 2
