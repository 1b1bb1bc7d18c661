"""Texts of others: what of them is shown, and what is taken out of them."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.untrusted.text import (
    last_argument,
    message_of,
    printable,
    redacted,
    redacted_place,
    shown_json,
    spreadsheet_cell,
)

STEERING = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u2060\ufeff\u00ad\u034f\u3164\ufe0f",
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    *map(chr, range(0xD800, 0xD810)),
    *map(chr, range(0xE0000, 0xE0080)),
    "\U000e0100",
]
"""Controls of C0 and C1, marks of direction, separators, zero width, surrogates, tags, selectors."""
SECRET = "S3CR3T"


def test_printable() -> None:
    """What steers a terminal, turns a line around or hides in it becomes a question mark."""
    assert printable("plain ü 漢") == "plain ü 漢"
    assert printable("a\nb\x1b[1m\udcff") == "a?b?[1m?"
    assert printable("a\nb\x1b", keep="\n") == "a\nb?"
    assert printable("".join(STEERING)) == "?" * len(STEERING)
    assert printable("run-\u202egnp.exe") == "run-?gnp.exe"


def test_json() -> None:
    """JSON keeps what its strings say, and shows none of it raw."""
    value = {"a": ["".join(each for each in STEERING if not each.isascii() or each == "\x7f"), "ü 漢"]}
    text = json.dumps(value, ensure_ascii=False, indent=1)
    shown = shown_json(text)
    assert not set(STEERING) - {"\n"} & set(shown) and "ü 漢" in shown
    assert json.loads(shown) == value
    assert shown_json("{}\n") == "{}\n"


@given(st.text())
def test_printable_everywhere(text: str) -> None:
    """No character of Unicode's controls, formats, separators and surrogates is left."""
    shown = printable(text)
    assert len(shown) == len(text)
    assert not {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"https://user:{SECRET}@store/ck?X-Amz-Signature={SECRET}", "https://store/ck"),
        (f"E: 'https://u:{SECRET}@store/ck?sig={SECRET}', mode='w'", "E: 'https://store/ck', mode='w'"),
        (f"mysql+pymysql://root:{SECRET}@db:3306/x#{SECRET}", "mysql+pymysql://db:3306/x"),
        (f"from s3://A:{SECRET}@b/k?v=1 to gs://b/k#{SECRET}.", "from s3://b/k to gs://b/k."),
        (f"hdfs://u:{SECRET}@nn:8020/a,abfs://c:{SECRET}@acct/b", "hdfs://nn:8020/a,abfs://acct/b"),
        (f"exceeded with url: /ck?sig={SECRET} (Caused by x)", "exceeded with url: /ck (Caused by x)"),
        (f"https://user:a/{SECRET}@store/ck", "https://store/ck"),
        (f"https://user:a?{SECRET}@store/ck", "https://store/ck"),
        (f"https://user:{SECRET}", "https://***"),
        (f"https://{SECRET}@github.com/org", "https://github.com/org"),
        (f"/job/https:/user:{SECRET}@store/ck?sig={SECRET}", "/job/https:/store/ck"),
        (f'{{"url":"https:\\/\\/u:{SECRET}@h\\/x?sig={SECRET}"}}', '{"url":"https:\\/\\/h\\/x"}'),
        (f"simplecache::s3://k:{SECRET}@b/x", "simplecache::s3://b/x"),
        (f"redis://:{SECRET}@h:6379/0", "redis://h:6379/0"),
        (f"user:{SECRET}@host/path", "***@host/path"),
        (f"dsn=user:p@{SECRET}@host:5432/db", "dsn=***@host:5432/db"),
        (f"Account=x;AccountKey={SECRET}==;Suffix=y", "Account=x;AccountKey=***;Suffix=y"),
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
        (f'"Authorization": "Basic {SECRET}"', '"Authorization": ***'),
        (f"Bearer {SECRET}{SECRET}", "Bearer ***"),
        (f"password={SECRET}, user=x", "password=***, user=x"),
        (f"connect(password='{SECRET} {SECRET}', port=1)", "connect(password=***, port=1)"),
        (f"PGPASSWORD={SECRET} psql", "PGPASSWORD=*** psql"),
        (f"aws_secret_access_key = {SECRET}/a+b", "aws_secret_access_key = ***"),
        (f"HF_TOKEN={SECRET}", "HF_TOKEN=***"),
        (f"X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}", "X-Amz-Signature=***&X-Amz-Credential=***"),
        (f"sv=2020&sig={SECRET}", "sv=2020&sig=***"),
        (f"secret_key = {SECRET}", "secret_key = ***"),
        (f"MINIO_SECRET_KEY={SECRET}", "MINIO_SECRET_KEY=***"),
        (f"encryption_key: {SECRET}, signing-key={SECRET}", "encryption_key: ***, signing-key=***"),
        (f"access_token: {SECRET}", "access_token: ***"),
        (f"token: {SECRET}", "token: ***"),
        (f"token: '9f8{SECRET}'", "token: ***"),
        (f"token: password={SECRET}", "token: ***"),
        (f"postgres://user:pa@{SECRET}/{SECRET}@host/db", "postgres://host/db"),
        (f"https://user:pa@{SECRET}?{SECRET}@host/db", "https://***"),
        (f"https://user:pass@store/ck?mail=a@b&{SECRET}", "https://***"),
    ],
)  # fmt: skip
def test_redacted(text: str, shown: str) -> None:
    """No credential is left in the text of an exception, and the rest of the sentence stays."""
    assert redacted(text) == shown
    assert SECRET not in shown


NAMES = (
    "password passwd passphrase pwd secret client_secret access_key_id Authorization access_key account_key "
    "api_key auth_key encryption_key license_key master_key private-key secret-key session-key signing-key "
    "storage-key subscription-key access_token api_token auth_token bearer_token github_token gitlab_token "
    "hf_token oauth_token refresh-token secret-token security-token session-token"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_secrets(name: str) -> None:
    """The value of what has such a name is hidden, however it is written."""
    for text in (f"{name}={SECRET}", f"x.{name.upper()}: {SECRET}", f'"{name.replace("_", "")}": "{SECRET}"'):
        assert SECRET not in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "/data/run:1@x/step-3?.pt",
        r"C:\Users\x@y\file.txt:3",
        "train.py:42",
        "train.py:42 in step",
        "ml@corp.com",
        "mailto:ml@corp.com",
        "#alerts",
        "tcp://[::1]:29500 and tcp://fe80::1:29500",
        "s3://bucket/step-3 is full",
        "http://localhost:9090: refused ('https://host:443'), (http://[::1]:80).",
        "abfss://container@account.dfs.core.windows.net/ck",
        "git@github.com:org/repo",
        "KeyError: 'token'",
        "pad_token=0, max_tokens=100, tokens: 3",
        "token: 5 of 7, tokens: 4096, pad_token: <|fim_pad_1|>, eos_token: '</s>', next token: hello",
        "loss per token: 1.25e-05, 12.5ms per token: 350.5tok/s",
        "  File 'a.py', line 3: no key: 'weight_12'",
        "primary_key: row12345",
        "[Errno 28] No space left on device: '/data/ck'",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "what? no",
    ],
)
def test_left_alone(text: str) -> None:
    """Paths, places in code, addresses of people and ordinary sentences stay as they are."""
    assert redacted(text) == text


@given(st.text(alphabet="au:/@?#=.'\"\\ ,<>&;[]1" + "ß\n") | st.text())
def test_redacted_again(text: str) -> None:
    """What is redacted stays as it is: a text may pass through several hands."""
    once = redacted(text)
    assert redacted(once) == once
    assert redacted_place(redacted_place(text)) == redacted_place(text)


@pytest.mark.parametrize(
    "piece",
    ["a", "://", "u:p@", "https:/", "=a:b,", 'pwd="', "'a:", "?a=", "[", ":\\/", "Bearer ", "token: ",
     "token:1", "://u:p@h/@"],
)  # fmt: skip
def test_linear(piece: str) -> None:
    """An attacker who writes the text gains nothing by its length. An expression that goes back over it would
    take longer than a test may."""
    text = piece * (400_000 // len(piece))
    redacted(text), redacted_place(text), printable(text)


def test_place() -> None:
    """A path stays whole whatever it holds; a URL has no credentials, also with spaces in it."""
    for path in ("/data/a b:c@d/e", "/data/what?x=1#2", "/data/password=1", "s3://bucket/step-3"):
        assert redacted_place(path) == path
    assert redacted_place(f"https://u:{SECRET} {SECRET}@store/my ck?sig={SECRET}") == "https://store/my ck"
    assert redacted_place(f"/job/https:/u:{SECRET}@store/ck?sig={SECRET}") == "/job/https:/store/ck"


def test_message() -> None:
    """A message is one printable line. Where its end is cut off, half a login is not taken for a word."""
    assert message_of(f"the store\nis \x1b[31mgone: s3://u:{SECRET}@b") == "the store is ?[31mgone: s3://b"
    assert SECRET not in message_of("x " * 2040 + f"user:{SECRET}" + "y" * 20 + "@host")
    assert message_of("x" * 10_000) == "x" * 4096


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *((text, f"'{text}") for text in ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\uff1d1+1")),
        *(("\t=1", "?=1"), ("\r=1", "?=1"), ("all_reduce", "all_reduce"), ("", "")),
    ],
)
def test_cell(text: str, cell: str) -> None:
    """A cell that begins like a formula is text for a spreadsheet. A tab or carriage return before one is a
    question mark."""
    assert spreadsheet_cell(text) == cell


@pytest.mark.parametrize(
    ("name", "word"),
    [("train-1", "train-1"), ("r$(id)", "'r$(id)'"), ("a b\x1b[2J", "'a b?[2J'"), ("-rf", "-- -rf")],
)
def test_last_argument(name: str, word: str) -> None:
    """A name in a command that people copy is one word of the shell, whatever it holds, and no option."""
    assert last_argument(name) == word
