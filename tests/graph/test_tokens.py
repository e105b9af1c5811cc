"""Numbers, dates and names are read exactly, and every bad row is found with its place and its reason."""

from __future__ import annotations

import datetime as dt
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.graph.text_reference import LAST_SECOND, read, value_of
from timeloom.graph.ingest import tokens
from timeloom.graph.ingest.layout import Layout
from timeloom.graph.ingest.text import read_tokens
from timeloom.graph.ingest.tokens import Form, Reason, Role
from timeloom.graph.keys import Int64s

MOST = 2**63 - 1
IDS = (Role.source, Role.target)
EVENT = (*IDS, Role.time)


def field(text: bytes | str, role: Role, form: Form) -> int | float | str | Reason:
    """Read one field three ways (as a plain row, with blanks around it, in quotes); return what it says."""
    text = text.encode() if isinstance(text, str) else text
    roles = (role, Role.target) if role == Role.source else (*IDS, role)
    forms = (form, Form.integer) if role == Role.source else (Form.integer, Form.integer, form)
    layout = Layout(";", (), roles, forms)
    before, after = (b"", b";2\n") if role == Role.source else (b"1;2;", b"\n")
    found = [
        only_value(before + start + text + end + after, role, layout)
        for start, end in ((b"", b""), (b"\t", b" "), (b'"', b'"'))
    ]
    assert repr(found[0]) == repr(found[1]) == repr(found[2]), found
    return found[0]


def only_value(line: bytes, role: Role, layout: Layout) -> int | float | str | Reason:
    read_line = read_tokens(np.frombuffer(bytearray(line), np.uint8), layout, "")
    if read_line.bad:
        assert read_line.block.num_rows == 0
        assert read_line.bad[0][:2] == (1, layout.roles.index(role))
        return Reason(read_line.bad[0][2])
    column = getattr(read_line.block, role.name)
    value: int | float | str = column.tolist()[0] if isinstance(column, np.ndarray) else column.to_pylist()[0]
    return value


@example(MOST)
@example(MOST + 1)
@example(10**18)
@example(10**19 - 1)
@example(2**64 + 5)
@given(st.integers(0, 2**63 + 10) | st.integers(0, 10**25))
def test_ids_are_read_exactly_up_to_the_last_integer_and_no_further(number: int) -> None:
    expected = number if number <= MOST else Reason.overflow
    assert field(str(number), Role.source, Form.plain_integer) == expected
    assert field(f"{number:030}", Role.source, Form.integer) == expected
    assert field(f"+{number}", Role.source, Form.integer) == expected
    assert field(f"-{number}", Role.source, Form.integer) == Reason.negative


@example(-MOST)
@example(-MOST - 1)
@given(st.integers(-(2**63) - 10, 2**63 + 10))
def test_whole_times_are_read_exactly(number: int) -> None:
    expected = number if abs(number) <= MOST else Reason.time_range
    assert field(str(number), Role.time, Form.integer) == expected
    assert field(f"{number:+031}", Role.time, Form.integer) == expected


@pytest.mark.parametrize("text", ["007", "00", "+5", "+0"])
def test_two_texts_never_mean_one_id(text: str) -> None:
    assert field(text, Role.source, Form.plain_integer) == Reason.leading_zero
    assert field(text, Role.source, Form.integer) == int(text)


DIGITS = st.text("0123456789", max_size=25)


@example("", "9223372035", "9999999994", "")
@example("-", "9223372035", "9999999999", "")
@example("", "9223372036", "0", "")
@example("", "0", "0000000005", "")
@example("-", "0", "00000000049999", "")
@example("", "1", "", "e999999999999999999999")
@example("", "1", "", "e-99999999999")
@example("", "9", "2233720359999999999999999999999999999999", "e9")
@given(
    st.sampled_from(["", "+", "-"]), DIGITS, DIGITS,
    st.just("") | st.builds("{}{:+}".format, st.sampled_from("eE"), st.integers(-40, 40)),
)  # fmt: skip
def test_decimal_times_are_kept_in_billionths(sign: str, whole: str, part: str, exponent: str) -> None:
    text = f"{sign}{whole}.{part}{exponent}"
    found = field(text, Role.time, Form.decimal)
    if not whole + part:
        assert found == Reason.not_time
    elif len(exponent) > 4:
        assert found == (0 if int(whole + part) == 0 or "-" in exponent else Reason.time_range)
    elif abs(Fraction(text)) >= LAST_SECOND + 1:
        assert found == Reason.time_range
    else:
        nano = abs(Fraction(text)) * 10**9
        assert found == int(nano + Fraction(1, 2)) * (-1 if sign == "-" else 1)


def test_rounded_times_are_counted_in_good_rows_only() -> None:
    layout = Layout(",", (), (*EVENT, Role.weight), (Form.integer, Form.integer, Form.decimal, Form.real))
    text = b"1,2,0.5,1\n1,2,0.1234567891,1\n1,2,1234567890123e-12,1\n1,2,0.1234567891,x\n1,2,0.1230000000000,1\n"
    found = read_tokens(np.frombuffer(bytearray(text), np.uint8), layout, "")
    assert found.num_rounded == 2
    assert found.block.time is not None
    assert found.block.time.tolist() == [500_000_000, 123_456_789, 1_234_567_890, 123_000_000]


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """Return a date and time as text, and its nanoseconds since 1970."""
    moment = draw(st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2300, 1, 1)))
    digits = draw(st.text("0123456789", max_size=9))
    form = draw(st.sampled_from(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"]))
    text = f"{moment.year:04}" + moment.strftime(form)[len(moment.strftime("%Y")) :]
    exact = int(np.datetime64(text.replace(" ", "T"), "s").astype(np.int64)) * 10**9
    if text.count(":") == 2 and digits:
        text, exact = f"{text}.{digits}", exact + int(digits.ljust(9, "0"))
    if ":" in text and draw(st.booleans()):
        sign, hours, minutes = draw(st.sampled_from([1, -1])), draw(st.integers(0, 23)), draw(st.integers(0, 59))
        mark, shape = "+" if sign > 0 else "-", draw(st.sampled_from(["{:02}:{:02}", "{:02}{:02}", "{:02}"]))
        minutes = minutes if shape != "{:02}" else 0
        text, exact = text + mark + shape.format(hours, minutes), exact - sign * (hours * 60 + minutes) * 60 * 10**9
    elif ":" in text and draw(st.booleans()):
        text += "Z"
    return text, exact


@settings(max_examples=300)
@example(("1677-09-21T00:12:45Z", -LAST_SECOND * 10**9))
@example(("1677-09-21T00:12:44Z", -(LAST_SECOND + 1) * 10**9))
@example(("2262-04-11T23:47:15.999999999", LAST_SECOND * 10**9 + 999_999_999))
@example(("2262-04-11T23:47:16", (LAST_SECOND + 1) * 10**9))
@example(("2000-02-29", 951_782_400 * 10**9))
@example(("1969-12-31T23:59:59.5", -500_000_000))
@given(moments())
def test_dates_are_those_of_numpy(moment: tuple[str, int]) -> None:
    text, exact = moment
    in_range = abs(exact // 10**9) <= LAST_SECOND
    assert field(text, Role.time, Form.date) == (exact if in_range else Reason.time_range)
    assert field(text, Role.time, Form.integer) == Reason.not_time


def times_of(text: bytes, layout: Layout) -> Int64s:
    times = read_tokens(np.frombuffer(bytearray(text), np.uint8), layout, "").block.time
    assert times is not None
    return times


def test_every_day_of_the_calendar_is_right() -> None:
    days = np.arange(np.datetime64("1678-01-01"), np.datetime64("2262-01-01"))
    layout = Layout(",", (), EVENT, (Form.integer, Form.integer, Form.date))
    text = "".join(f"1,2,{day}\n" for day in days).encode()
    found = times_of(text, layout)
    assert np.array_equal(found, days.astype("datetime64[ns]").astype(np.int64))
    layout = Layout(",", (), EVENT, (Form.integer, Form.integer, Form.yyyymmdd))
    found = times_of(text.replace(b"-", b""), layout)
    assert np.array_equal(found, days.astype("datetime64[s]").astype(np.int64))


@pytest.mark.parametrize(
    "text",
    [
        "1900-02-29", "2021-02-29", "2020-13-01", "2020-00-01", "2020-04-31", "2020-01-00", "2020-1-1", "20-01-01",
        "2020-01-01T24:00", "2020-01-01T12:60", "2020-01-01T12:00:60", "2020-01-01T12", "2020-01-01T12:00:00.",
        "2020-01-01T12:00:00.1234567890", "2020-01-01Z", "2020-01-01T12:00+24", "2020-01-01T12:00+01:60",
        "2020-01-01T12:00+1", "2020-01-01T12:00Zx", "2020-01-01t12:00", "2020/01/01", "2020-01-01 ", "-2020-01-01", "x",
    ],
)  # fmt: skip
def test_what_is_no_date_is_refused(text: str) -> None:
    expected = 1_577_836_800 * 10**9 if text == "2020-01-01 " else Reason.not_time
    layout = Layout(",", (), EVENT, (Form.integer, Form.integer, Form.date))
    assert only_value(f"1,2,{text}".encode(), Role.time, layout) == expected


@pytest.mark.parametrize("text", ["20240230", "2024013", "202401311", "00000101", "+2024131", "2024-1-1", "20240131.0"])
def test_what_is_no_yyyymmdd_is_refused(text: str) -> None:
    assert field(text, Role.time, Form.yyyymmdd) == Reason.not_time


@settings(max_examples=400)
@example(5e-324, 17)
@example(1.7976931348623157e308, 17)
@example(2.2250738585072011e-308, 17)
@example(9007199254740993.0, 17)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 25))
def test_weights_are_the_nearest_float(number: float, digits: int) -> None:
    for text in (repr(number), f"{number:.{digits}e}", f"{number:.{digits}g}", f"{number:+.{digits}G}"):
        assert repr(field(text, Role.weight, Form.real)) == repr(finite(text)), text


@settings(max_examples=400)
@example("", "900719925474098", "9", "")
@example("", "900719925474099", "3", "")
@example("-", "0", "0", "")
@example("", "0", "1234567890123450000000000000000000000000000", "")
@given(
    st.sampled_from(["", "+", "-"]), DIGITS, DIGITS,
    st.just("") | st.builds("e{}".format, st.integers(-400, 400) | st.just(10**30)),
)  # fmt: skip
def test_weights_of_any_digits_are_the_nearest_float(sign: str, whole: str, part: str, exponent: str) -> None:
    for point in (".", ""):
        text = f"{sign}{whole}{point}{part}{exponent}"
        expected = finite(text) if whole + part else Reason.missing if not text else Reason.not_number
        assert repr(field(text, Role.weight, Form.real)) == repr(expected), text


def test_weights_at_the_border_of_exact_arithmetic_are_the_nearest_float() -> None:
    rng = random.Random("border")
    texts = [str(rng.randrange(10 ** (size - 1), 10**size)) for size in range(14, 20) for _ in range(2000)]
    texts = [f"{text[:place]}.{text[place:]}" for text in texts if (place := rng.randrange(len(text) + 1)) >= 0]
    layout = Layout(",", (), (*IDS, Role.weight), (Form.integer, Form.integer, Form.real))
    data = "".join(f"1,2,{text}\n" for text in texts).encode()
    weights = read_tokens(np.frombuffer(bytearray(data), np.uint8), layout, "").block.weight
    assert weights is not None
    assert weights.tolist() == [float(text) for text in texts]


def finite(text: str) -> float | Reason:
    return float(text) if abs(float(text)) < float("inf") else Reason.not_finite


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "inf", "+Infinity", "-INF"])
def test_what_is_not_finite_is_no_weight(text: str) -> None:
    assert field(text, Role.weight, Form.real) == Reason.not_finite


@pytest.mark.parametrize("text", ["x", "1,5", "1_000", "0x10", "1e", "e5", "--1", "1.2.3", ".", "+", "infinit", "٣"])
def test_what_is_no_number_is_no_weight(text: str) -> None:
    assert field(text, Role.weight, Form.real) == Reason.not_number


@given(st.binary(max_size=12) | st.text(max_size=6).map(str.encode))
def test_names_are_utf8_without_control_characters(name: bytes) -> None:
    if any(byte in name for byte in b'\n\r;"') or name != name.strip(b" \t"):
        return
    assert repr(field(name, Role.source, Form.text)) == repr(value_of(name, Role.source, Form.text))


def test_operations_are_signs() -> None:
    for text, expected in {"+1": 1, "1": 1, "+": 1, "-1": -1, "-": -1}.items():
        assert field(text, Role.operation, Form.sign) == expected
    for text in ("0", "2", "+2", "--", "+1.0", "add", "11"):
        assert field(text, Role.operation, Form.sign) == Reason.operation


LAYOUTS = [
    (EVENT, (Form.plain_integer, Form.plain_integer, Form.integer)),
    (EVENT, (Form.integer, Form.integer, Form.decimal)),
    (EVENT, (Form.text, Form.text, Form.date)),
    (
        (Role.source, Role.ignored, Role.target, Role.time, Role.weight),
        (Form.plain_integer, Form.text, Form.plain_integer, Form.yyyymmdd, Form.real),
    ),
    (
        (Role.time, Role.source, Role.target, Role.weight, Role.type, Role.operation),
        (Form.integer, Form.plain_integer, Form.plain_integer, Form.real, Form.text, Form.sign),
    ),
    (IDS, (Form.text, Form.text)),
]
ODD = [
    b"0", b"007", b"-5", b"+5", b"-0", b"9223372036854775807", b"9223372036854775808", b"123456789012345678",
    b"99" * 10, b"1.5", b".5", b"5.", b".", b"-", b"+", b"+1", b"-1", b"1e3", b"1e400", b"1E-400", b"e", b"nan",
    b"-inf", b"Infinity", b"0.1234567890123456789", b"9223372035.9999999995", b"9223372036", b"12345678901234567.5",
    b"900719925474099.3", b"2020-02-30", b"2020-02-29T12:30", b"2020-02-29 12:30:59.5+0130", b"1677-09-21",
    b"2262-04-11T23:47:16", b"0000-01-01", b"20200131", b"2020131", b"a", b"New York", b"\xc3\xa9", b"\xff", b"\x00",
    b"a\x7f", b"\xed\xa0\x80", b"", b" ", b'"a"', b'"1"', b'" 1"', b'"a,b"', b'"a""b"', b'"a"b', b'"a', b'""', b'a"b',
    b"#x", b"%", b"\t", b"1 ", b" 1", b"\r", b'"a"""', b'"""a"', b'x"', b'"1" ', b'"1"x', b"\xf0\x9f\x98\x80",
]  # fmt: skip


def likely(rng: random.Random, form: Form) -> bytes:
    """Return a field as it should be."""
    good = {
        Form.plain_integer: str(rng.randrange(10 ** rng.randrange(1, 19))),
        Form.integer: str(rng.randrange(10**9)),
        Form.decimal: f"{rng.randrange(10**9)}.{rng.randrange(10**6)}",
        Form.date: f"2020-01-{rng.randrange(1, 31):02}T0{rng.randrange(10)}:00:00",
        Form.yyyymmdd: f"202001{rng.randrange(1, 31):02}",
        Form.text: rng.choice(["a", "bob", "x y", "é"]),
        Form.real: repr(rng.choice([rng.random(), rng.randrange(100), round(rng.random(), 4), -3.25])),
        Form.sign: rng.choice(["+1", "-1", "1"]),
    }
    return good[form].encode()


def some_table(rng: random.Random) -> tuple[bytes, Layout]:
    """Return a small table of good and odd rows, and its layout."""
    (roles, forms), separator = rng.choice(LAYOUTS), rng.choice([",", "\t", ";", "|", "", ":"])
    between = separator.encode() or rng.choice([b" ", b"\t", b"  ", b" \t"])
    lines = []
    for _ in range(rng.randrange(1, 8)):
        size = len(roles) + rng.choice([0] * 12 + [-1, 1])
        fields = [
            likely(rng, forms[place]) if place < len(forms) and rng.random() < 0.8 else rng.choice(ODD)
            for place in range(size)
        ]
        line = between.join(fields)
        if rng.random() < 0.1:
            line = rng.choice([b"", b"  ", b"# c", b"\t", b" #"]) + rng.choice([b"", line])
        lines.append(line + rng.choice([b"", b"", b"\r"]))
    return b"\n".join(lines) + rng.choice([b"", b"\n"]), Layout(separator, (), roles, forms)


def compare(data: bytes, layout: Layout) -> None:
    """Demand that a table reads as the slow reference reads it, row by row and reason by reason."""
    found, expected = read_tokens(np.frombuffer(bytearray(data), np.uint8), layout, "#%"), read(data, layout)
    for role in set(layout.roles) - {Role.ignored}:
        column = getattr(found.block, role.name)
        values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        assert repr(values) == repr([row[role] for row in expected.rows]), (data, layout, role)
    bad = [(line, column + 1, Reason(reason)) for line, column, reason, _ in found.bad]
    assert bad[: tokens.MOST_REPORTED] == expected.bad[: tokens.MOST_REPORTED], (data, layout)
    reasons = {Reason(reason): count for reason, count in enumerate(found.reasons.tolist()) if count}
    assert reasons == expected.reasons, (data, layout)
    counts = [int(found.counters[place]) for place in (tokens.ROWS, tokens.BAD, tokens.BLANK, tokens.COMMENTS)]
    others = [expected.others[f"{kind} lines"] for kind in ("blank", "comment")]
    assert counts == [len(expected.rows), len(expected.bad), *others], (data, layout)
    assert found.num_rounded == expected.num_rounded, (data, layout)


def test_any_table_reads_as_the_slow_reference_reads_it() -> None:
    rng = random.Random("tables")
    for _ in range(3000):
        compare(*some_table(rng))


@pytest.mark.slow
def test_a_hundred_thousand_tables_read_as_the_slow_reference_reads_them() -> None:
    rng = random.Random("many tables")
    for _ in range(100_000):
        compare(*some_table(rng))


def test_more_bad_rows_than_are_reported_are_all_counted() -> None:
    layout = Layout(",", (), (*EVENT, Role.weight), (Form.integer, Form.integer, Form.integer, Form.real))
    compare(b"1,2,3\n1,2,3,x\n1,2,3,4\n-1,2,3,1e999\n1,2,3,1e999\n" * 20, layout)


def test_a_name_may_be_as_long_as_a_line() -> None:
    # The size of a name is kept beside its place: a long one must not run over into it.
    name = b"x" * ((1 << 20) + 3)
    layout = Layout(",", (), IDS, (Form.text, Form.text))
    found = read_tokens(np.frombuffer(bytearray(b"a,b\n" + name + b",b\n"), np.uint8), layout, "")
    assert [str(text) for text in found.block.source] == ["a", name.decode()]


def test_slow_weights_that_arrow_cannot_read_are_read_one_by_one() -> None:
    layout = Layout(",", (), (*IDS, Role.weight), (Form.integer, Form.integer, Form.real))
    text = b"1,2,0.12345678901234567\n1,2,1e400\n1,2,+0.12345678901234567\n1,2,1e-400\n"
    found = read_tokens(np.frombuffer(bytearray(text), np.uint8), layout, "")
    assert found.block.weight is not None
    assert found.block.weight.tolist() == [0.12345678901234567, 0.12345678901234567, 0.0]
    assert found.bad == [(2, 2, Reason.not_finite, "1e400")]
