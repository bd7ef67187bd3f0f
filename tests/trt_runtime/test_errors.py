"""The errors' messages, fields, and their way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from trt_runtime.errors import ExplainedError, FolderError, MingError, NumericError, UserError


@pytest.mark.parametrize("kind", [UserError, FolderError, NumericError])
def test_a_message_says_all_four(kind: type[ExplainedError]) -> None:
    error = kind("It is wrong.", expected="a", found="b", do="c")
    assert str(error) == "It is wrong.\n  Expected: a.\n  Found: b.\n  What to do: c."
    assert (error.what, error.expected, error.found, error.do) == ("It is wrong.", "a", "b", "c")
    assert isinstance(error, MingError)


def test_a_part_that_ends_a_sentence_gets_no_second_full_stop() -> None:
    error = UserError("Wrong", expected="anna: Hello.", found="duration=...", do="see above.")
    assert str(error) == (
        "Wrong.\n  Expected: anna: Hello.\n  Found: duration=...\n  What to do: see above."
    )


def test_what_there_is_nothing_to_say_of_is_left_out() -> None:
    assert str(UserError("It is wrong", do="c")) == "It is wrong.\n  What to do: c."


@pytest.mark.parametrize("kind", [UserError, FolderError, NumericError])
def test_none_is_without_what_to_do(kind: type[ExplainedError]) -> None:
    with pytest.raises(TypeError, match="do"):
        kind("It is wrong", expected="a", found="b")


@pytest.mark.parametrize("kind", [UserError, FolderError, NumericError])
def test_an_error_may_cross_processes(kind: type[ExplainedError]) -> None:
    error = kind("It is wrong", expected="a", found="b", do="c")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == str(error)
        assert other.do == "c"
