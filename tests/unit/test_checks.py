"""Checks of seconds, counts, texts and choices: accepted values and error texts."""

from __future__ import annotations

import math
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from liftenvelope._checks import (
    as_choice,
    as_count,
    as_flag,
    as_full_text,
    as_integer,
    as_names,
    as_seconds,
    as_signed_seconds,
    as_text,
    is_encodable,
    require,
)
from liftenvelope.errors import MissingExtraError, UsageError, UsageTypeError

#: Larger than the largest float.
HUGE = 10**400
#: Python refuses to print an int of this size.
UNPRINTABLE = 10**5_000


class Level(IntEnum):
    LOW = 1


class Ascii(str):
    def isascii(self) -> bool:
        return True


class Index:
    def __index__(self) -> int:
        return 7


class TestSeconds:
    @pytest.mark.parametrize("value", [1, 0.001, 5e-324, 1e300, 1.7976931348623157e308])
    def test_positive_numbers_become_floats(self, value: float) -> None:
        seconds = as_seconds("timeout", value)
        assert seconds == value
        assert type(seconds) is float

    @pytest.mark.parametrize("value", [0, 0.0, -0.0])
    def test_zero_is_accepted_on_request_only(self, value: float) -> None:
        assert as_seconds("max_wait", value, zero=True) == 0
        with pytest.raises(
            UsageError, match=rf"^timeout must be a positive number of seconds, got {value!r}$"
        ):
            as_seconds("timeout", value)

    @pytest.mark.parametrize("value", [-1, -5e-324, math.nan, math.inf, -math.inf])
    def test_out_of_range(self, value: float) -> None:
        with pytest.raises(
            UsageError, match=rf"^timeout must be a positive number of seconds, got {value!r}$"
        ):
            as_seconds("timeout", value)
        text = f"^max_wait must be a finite number of seconds, 0 or more, got {value!r}$"
        with pytest.raises(UsageError, match=text):
            as_seconds("max_wait", value, zero=True)

    @pytest.mark.parametrize("zero", [False, True])
    def test_ints_beyond_floats_are_refused(self, zero: bool) -> None:
        with pytest.raises(UsageError, match=r"^timeout must be .*, got 10{79}\.\.\.$"):
            as_seconds("timeout", HUGE, zero=zero)
        with pytest.raises(UsageError, match=r"^timeout must be .*, got an int of more digits than Python"):
            as_seconds("timeout", UNPRINTABLE, zero=zero)

    @pytest.mark.parametrize("value", [True, False, None, "5", b"5", 1j, [1]])
    def test_other_types(self, value: Any) -> None:
        for check in (as_seconds, as_signed_seconds):
            with pytest.raises(UsageTypeError) as caught:
                check("timeout", value)
            assert str(caught.value) == f"timeout must be a number of seconds, got {value!r}"

    @pytest.mark.parametrize("value", [0, -1, math.inf, HUGE], ids=["0", "-1", "inf", "huge"])
    def test_signed_seconds_have_no_range(self, value: float) -> None:
        assert as_signed_seconds("delay", value) is value


class TestCounts:
    @pytest.mark.parametrize(
        "value", [1, 2**63, HUGE, Level.LOW, Index()], ids=["1", "2**63", "huge", "enum", "index"]
    )
    def test_integers_become_ints(self, value: Any) -> None:
        for number in (as_count("rows", value), as_integer("rows", value)):
            assert type(number) is int

    @pytest.mark.parametrize(
        ("value", "least", "most", "text"),
        [
            (0, 1, None, "rows must be at least 1, got 0"),
            (-1, 0, None, "rows must be at least 0, got -1"),
            (-1, 0, 9, "rows must be at least 0, got -1"),
            (10, 0, 9, "rows must be at most 9, got 10"),
            (HUGE, 1, 9, f"rows must be at most 9, got 1{'0' * 79}..."),
            (UNPRINTABLE, 1, 9, "rows must be at most 9, got an int of more digits than Python prints"),
        ],
        ids=["0", "-1", "-1 of 9", "10", "huge", "unprintable"],
    )
    def test_out_of_range(self, value: int, least: int, most: int | None, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            as_count("rows", value, least, most)
        assert str(caught.value) == text

    @pytest.mark.parametrize("value", [0, 9])
    def test_bounds_are_accepted(self, value: int) -> None:
        assert as_count("priority", value, 0, 9) == value

    @pytest.mark.parametrize("value", [True, False, 1.0, math.nan, None, "1", b"1", [1]])
    def test_other_types(self, value: Any) -> None:
        for check in (as_count, as_integer):
            with pytest.raises(UsageTypeError) as caught:
                check("rows", value)
            assert str(caught.value) == f"rows must be an integer, got {value!r}"


class TestFlag:
    def test_flags_are_returned(self) -> None:
        assert as_flag("resume", True) is True
        assert as_flag("resume", False) is False

    @pytest.mark.parametrize("value", [None, 0, 1, "", "no", "True", [], math.nan])
    def test_other_values(self, value: Any) -> None:
        with pytest.raises(UsageTypeError) as caught:
            as_flag("resume", value)
        assert str(caught.value) == f"resume must be True or False, got {value!r}"


class TestTexts:
    @pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
    def test_lone_surrogate(self, text: str) -> None:
        assert not is_encodable(text)
        for check in (as_text, as_full_text):
            with pytest.raises(UsageError) as caught:
                check("key", text)
            expected = "key must not contain a lone surrogate, which UTF-8 cannot encode, got "
            assert str(caught.value) == expected + repr(text)

    def test_lone_surrogate_in_a_subclass_that_claims_to_be_ascii(self) -> None:
        with pytest.raises(UsageError, match=r"^key must not contain a lone surrogate"):
            as_text("key", Ascii("a\ud800"))

    @pytest.mark.parametrize("text", ["a", "é", "𝄞"])
    def test_other_texts_are_returned(self, text: str) -> None:
        assert is_encodable(text)
        assert as_text("key", text) == as_full_text("key", text) == text

    def test_empty_text(self) -> None:
        assert as_text("key", "") == ""
        with pytest.raises(UsageError, match=r"^key must not be empty, got ''$"):
            as_full_text("key", "")

    @pytest.mark.parametrize("value", [None, b"a", 1])
    def test_other_types(self, value: Any) -> None:
        for check in (as_text, as_full_text):
            with pytest.raises(UsageTypeError, match=f"^key must be str, got {type(value).__name__}$"):
                check("key", value)


class TestChoices:
    def test_choice_is_returned(self) -> None:
        assert as_choice("mode", "b", ("a", "b")) == "b"

    @pytest.mark.parametrize("value", ["c", None, 1, ["a"]])
    def test_other_values(self, value: Any) -> None:
        with pytest.raises(UsageError) as caught:
            as_choice("mode", value, ("a", "b"))
        assert str(caught.value) == f"mode must be one of 'a', 'b', got {value!r}"

    def test_extra_text_follows_the_choices(self) -> None:
        with pytest.raises(UsageError, match=r"^mode must be one of 'a', 'b' or a function, got 'c'$"):
            as_choice("mode", "c", ("a", "b"), extra=" or a function")


class TestNames:
    def test_names_keep_their_order(self) -> None:
        assert as_names("fields", ["b", "a"], ("a", "b", "c")) == ("b", "a")
        assert as_names("fields", iter(["c"]), ["a", "b", "c"]) == ("c",)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (["a", "d"], ", got 'd'"),
            ([["a"]], r", got \['a'\]"),
            (["a", "b", "a"], ", each once, got 'a' twice"),
            ([], ", got none"),
        ],
    )
    def test_other_names(self, value: Any, text: str) -> None:
        with pytest.raises(UsageError, match=f"^fields must be some of 'a', 'b'{text}$"):
            as_names("fields", value, ("a", "b"))

    @pytest.mark.parametrize("value", ["a", b"a", None, 1])
    def test_other_types(self, value: Any) -> None:
        with pytest.raises(UsageTypeError, match=f"^fields must be some of 'a', in a list, got {value!r}$"):
            as_names("fields", value, ["a"])


class TestRequire:
    @pytest.mark.parametrize(
        ("module", "package"),
        [
            ("google.protobuf.message", "protobuf"),
            ("opentelemetry.trace", "opentelemetry-api"),
            ("pyarrow.compute", "pyarrow"),
        ],
    )
    @pytest.mark.parametrize("extra", ["some", None])
    def test_names_the_package_to_install(
        self, module: str, package: str, extra: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in sys.modules if name == module or module.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "path", [])
        with pytest.raises(MissingExtraError) as caught:
            require(module, extra)
        wanted = "'liftenvelope[some]'" if extra else package
        assert str(caught.value) == f"this needs {package}: run pip install {wanted}"

    def test_error_inside_an_installed_package_passes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_peer.py").write_text("import nothing_of_this_name", "utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name") as caught:
            require("broken_peer", "some")
        assert type(caught.value) is ModuleNotFoundError
