"""Files, directories and data sets as people have them; several of them in a row or mixed, nothing lost between."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import datasets
import httpx2
import huggingface_hub
import pytest
import zoo
import zstandard

from draftsmith.data import readers
from draftsmith.data.mixture import placed_rows
from draftsmith.data.prepare import prepare
from draftsmith.data.readers import raw_rows, read_conversations
from draftsmith.data.source import Source, as_sources, names_of, parse_source
from draftsmith.data.store import TokenStore
from draftsmith.errors import DataError
from draftsmith.records import Conversation
from helpers import chat_row, write_jsonl

ROWS = [chat_row(f"Hi {i}", f"Hello {i}.", f"r{i}") for i in range(5)]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"city": "Oslo"}}}
TOOL_ROWS = [
    chat_row("Hi", "Hello.", "plain"),
    {"id": "call", "messages": [{"role": "user", "content": "W?"}, {"role": "assistant", "tool_calls": [CALL]}]},
]


def read(path: Path | Source) -> list[Any]:
    return [row for _, row in read_conversations(path)]


def made(tmp_path: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """The same rows in another kind of file."""
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / f"rows.{kind}"
    if kind == "json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif kind == "json.gz":
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    elif kind == "jsonl.zst":
        half = len(lines) // 2
        path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (lines[:half], lines[half:])))
    elif kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    elif kind == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    elif kind == "splits":
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(path))
    elif kind == "folder":
        path.mkdir()
        for number, row in enumerate(rows):
            write_jsonl(path / f"{number}.jsonl", [row])
        (path / "README.md").write_text("not a row", encoding="utf-8")
    elif kind == "bom":
        path.write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"))
    else:
        path.write_bytes(lines)
    return path


KINDS = ("json", "json.gz", "jsonl.zst", "parquet", "saved", "splits", "folder", "bom", "txt")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_rows_of_plain_lines(kind: str, tmp_path: Path) -> None:
    plain = list(read_conversations(made(tmp_path, "jsonl", ROWS)))
    assert [line for line, _ in plain] == [1, 2, 3, 4, 5]
    assert list(read_conversations(made(tmp_path, kind, ROWS))) == plain


@pytest.mark.parametrize("kind", ["parquet", "saved"])
def test_nulls_that_arrow_adds_to_other_rows_are_not_read_as_theirs(kind: str, tmp_path: Path) -> None:
    other = {"type": "function", "function": {"name": "g", "arguments": {"unit": "C"}}}
    last = {"id": "g", "messages": [{"role": "user", "content": "W?"}, {"role": "assistant", "tool_calls": [other]}]}
    rows = [*TOOL_ROWS, last]
    assert read(made(tmp_path, kind, rows)) == read(made(tmp_path, "jsonl", rows))


def test_messages_kept_as_columns_are_read_as_rows(tmp_path: Path) -> None:
    columns = {"id": "r0", "messages": {"role": ["user", "assistant"], "content": ["Hi 0", "Hello 0."]}}
    assert read(write_jsonl(tmp_path / "columns.jsonl", [columns])) == read(
        write_jsonl(tmp_path / "rows.jsonl", ROWS[:1])
    )


@pytest.mark.parametrize(
    ("kind", "said"), [("jsonl.zst", "zstd"), ("json.gz", "gzip"), ("json", "array"), ("parquet", "Parquet")]
)
def test_a_file_that_ends_early_is_an_error_and_never_a_short_file(kind: str, said: str, tmp_path: Path) -> None:
    path = made(tmp_path, kind, ROWS * 50)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=rf"rows\.{kind}.*{said}"):
        read(path)


def test_a_compressed_name_over_other_bytes_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for name in ("rows.jsonl.gz", "rows.jsonl.zst"):
        write_jsonl(tmp_path / name, ROWS)
        with pytest.raises(DataError, match=rf"{name} is not a whole"):
            read(tmp_path / name)


def test_an_array_longer_than_any_buffer_is_read_item_by_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.data.readers.CHUNK_CHARS", 7)
    assert read(made(tmp_path, "json", ROWS)) == read(made(tmp_path, "jsonl", ROWS))


def test_bytes_that_are_not_utf_8_cost_one_row_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(json.dumps(ROWS).encode().replace(b"Hello 2", b"Hell\xff 2"))
    rows = read(path)
    assert [getattr(row, "reason", None) for row in rows] == [None, None, "not UTF-8", None, None]


def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, "parquet", ROWS)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"install draftsmith\[data\]"):
        read(path)


def test_a_hub_data_set_that_cannot_be_reached_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"hub:nobody/none cannot be reached on the hub") as caught:
        read(Source("hub:nobody/none"))
    assert "\n" not in str(caught.value)

    def without_network(*_: Any, **__: Any) -> None:
        raise httpx2.ConnectError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "dataset_info", without_network)
    with pytest.raises(DataError, match=r"cannot be reached on the hub: Name or service not known; check name"):
        prepare(Source("hub:nobody/none"), Path("nowhere"), zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0)


def test_a_hub_data_set_is_read_at_a_commit_and_without_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load(*arguments: Any, **settings: Any) -> Any:
        asked.append((arguments, settings))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = parse_source(f"hub:org/name?split=train_sft&subset=en&revision={'a' * 40}")
    assert read(source) == read(made(tmp_path, "jsonl", ROWS))
    assert asked == [(("org/name", "en"), {"split": "train_sft", "revision": "a" * 40})]


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = made(tmp_path, "splits", ROWS)
    with pytest.raises(DataError, match=r"has no split 'test'; it has train"):
        read(parse_source(f"{path}?split=test"))


def test_sources_are_written_as_weight_and_path() -> None:
    assert parse_source("a.jsonl") == Source("a.jsonl")
    assert parse_source("0.5:a.jsonl") == Source("a.jsonl", 0.5)
    assert parse_source("2:hub:org/name?split=x") == Source("hub:org/name", 2.0, split="x")
    with pytest.raises(DataError, match="unknown option 'part'"):
        parse_source("hub:org/name?part=x")
    with pytest.raises(DataError, match="some sources have a weight"):
        as_sources([Source("a", 1.0), Source("b")])
    with pytest.raises(DataError, match="weights must be above 0"):
        as_sources([Source("a", 0.0), Source("b", 1.0)])
    with pytest.raises(DataError, match="given twice"):
        as_sources([Source("a"), Source("a")])
    assert names_of((Source("x/train.jsonl"), Source("y/train.jsonl"))) == ("x/train.jsonl", "y/train.jsonl")


@pytest.mark.parametrize("other", ["./a.jsonl", "b/../a.jsonl", "a.jsonl?split="])
def test_a_source_given_twice_is_refused_however_it_is_written(other: str) -> None:
    with pytest.raises(DataError, match="given twice"):
        as_sources([parse_source("a.jsonl"), parse_source(other)])


@pytest.mark.timeout(10)
def test_a_hub_data_set_and_a_directory_of_the_same_name_have_different_names() -> None:
    assert names_of((Source("hub:a/b"), Source("a/b"), Source("c"))) == ("1/a/b", "2/a/b", "3/c")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[{"a": 1}\n {"a": 2}]', "item 1, line 2: followed by '{'"),
        ('[{"a": 1},\n{"a": 2};{"a": 3}]', "item 2, line 2: followed by ';'"),
        ("[1,\n2\n3]", "item 2, line 3: followed by '3'"),
        ("[{},,{}]", "item 2, line 1: Expecting value"),
        ("[{},\n]", "item 2, line 2: "),
        ("[,{}]", "item 1, line 1: "),
        ("[{}\n", "item 1, line 2: it ends"),
        ("[" + "[" * 100_000, "item 1, line 1: nested too deeply"),
    ],
)
def test_an_array_that_is_not_one_is_refused_at_its_place(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(f"rows.json is no whole JSON array: {place}")):
        list(raw_rows(Source(str(path))))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_an_array_is_the_same_however_it_is_cut_in_reading(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "CHUNK_CHARS", chunk)
    path = tmp_path / "rows.json"
    path.write_text('[ 12 ,\n{"a": [1, "], {"]}\n, 3, "x" ]\n', encoding="utf-8")
    assert [row for _, row in raw_rows(Source(str(path)))] == [12, {"a": [1, "], {"]}, 3, "x"]
    path.write_text("[1,\n{}\n{}]", encoding="utf-8")
    with pytest.raises(DataError, match="item 2, line 3: followed by"):
        list(raw_rows(Source(str(path))))


@pytest.mark.parametrize("text", ["", " ", "hub:", "2:hub:", "hub:?split=x"])
def test_a_source_without_a_name_is_an_error_and_not_the_directory_that_one_is_in(text: str) -> None:
    with pytest.raises(DataError, match="names nothing to read"):
        parse_source(text)


@pytest.mark.parametrize("rest", ["[{}]", "x", " " * (1 << 20) + "{}"])
def test_what_follows_a_json_array_is_an_error_and_not_left_out(rest: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS) + rest, encoding="utf-8")
    with pytest.raises(DataError, match="goes on after its array"):
        read(path)
    path.write_text(json.dumps(ROWS) + "\n\n", encoding="utf-8")
    assert len(read(path)) == len(ROWS)


def two_files(tmp_path: Path, sizes: tuple[int, int] = (30, 90)) -> list[Path]:
    rows = [[chat_row(f"Hi {i}", "Hello.", str(i)) for i in range(size)] for size in sizes]
    return [write_jsonl(tmp_path / f"{name}.jsonl", part) for name, part in zip("ab", rows, strict=True)]


def stored(tmp_path: Path, sources: list[Source], **settings: Any) -> TokenStore:
    tokenizer = zoo.byte_tokenizer(zoo.CHATML)
    place = tmp_path / f"store{len(list(tmp_path.iterdir()))}"
    return prepare(sources, place, tokenizer, max_length=64, holdout=0.2, **settings)


def test_sources_without_weights_follow_one_another_and_are_counted_apart(tmp_path: Path) -> None:
    a, b = two_files(tmp_path)
    b.write_text(b.read_text(encoding="utf-8") + "{\n", encoding="utf-8")
    store = stored(tmp_path, [Source(str(a)), Source(str(b))])
    accounting = store.accounting
    assert {name: (share.num_read, share.num_kept) for name, share in accounting.sources.items()} == {
        "a.jsonl": (30, 30),
        "b.jsonl": (91, 90),
    }
    assert str(accounting.rejected["not valid JSON"].first).startswith("b.jsonl, line 91: not valid JSON")
    assert store.ids == [*(f"a.jsonl/{i}" for i in range(30)), *(f"b.jsonl/{i}" for i in range(90))]


def test_weights_give_shares_and_what_would_break_them_is_counted(tmp_path: Path) -> None:
    a, b = two_files(tmp_path)
    sources = [Source(str(a), 1.0), Source(str(b), 1.0)]
    accounting = stored(tmp_path, sources).accounting
    assert accounting.num_read == 120
    assert accounting.num_kept + accounting.num_rejected == 120
    kept = [accounting.sources[name].num_kept for name in ("a.jsonl", "b.jsonl")]
    assert kept[0] == 30
    assert 15 < kept[1] < 60
    assert list(accounting.rejected) == ["left out to keep the weights"]
    assert stored(tmp_path, sources, strict=True).accounting == accounting, "leaving out is no mistake of a row"


def test_a_mix_that_ends_early_names_the_source_that_had_no_more(tmp_path: Path) -> None:
    a, b = two_files(tmp_path)
    left_out = stored(tmp_path, [Source(str(a), 1.0), Source(str(b), 1.0)]).accounting.rejected
    first = left_out["left out to keep the weights"].first
    assert (first.source, first.detail) == ("b.jsonl", "a.jsonl has no more rows")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_mix_until_all_are_exhausted_loses_no_row_keeps_the_shares_and_counts_repeats(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["draftsmith.data.prepare"], "WORTH_A_PROCESS_BYTES", 0)
    a, b = two_files(tmp_path, (30, 900))
    a.write_text(a.read_text(encoding="utf-8") + "{\n", encoding="utf-8")
    sources = [Source(str(a), 1.0), Source(str(b), 3.0)]
    store = stored(tmp_path, sources, stopping_strategy="all_exhausted", num_workers=num_workers)
    rows = store.accounting
    assert set(store.ids) == {*(f"a.jsonl/{i}" for i in range(30)), *(f"b.jsonl/{i}" for i in range(900))}
    assert rows.num_read == rows.num_kept + rows.num_rejected == rows.sources["a.jsonl"].num_read + 900
    assert rows.sources["b.jsonl"].num_kept == 900
    assert 200 < rows.sources["a.jsonl"].num_kept < 400
    assert rows.notes == {"read again to keep the weights": rows.sources["a.jsonl"].num_kept - 30}
    assert rows.rejected["not valid JSON"].count == 1, "a row that cannot be used is named once"
    assert (
        rows.num_rejected == 1 + rows.rejected["read again to keep the weights, and no more usable than before"].count
    )
    with pytest.raises(DataError, match="stopping_strategy"):
        prepare(sources, store.path, zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0.2)


def test_the_order_of_a_mix_depends_on_its_seed_and_on_nothing_else(tmp_path: Path) -> None:
    sources = tuple(Source(str(path), weight) for path, weight in zip(two_files(tmp_path), (1.0, 3.0), strict=True))
    orders = [[(row.source, row.line) for row in placed_rows(sources, seed=seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [(0, i + 1) for i in range(30)] + [(1, i + 1) for i in range(90)]
    place = stored(tmp_path, list(sources), seed=0).path
    with pytest.raises(DataError, match="seed"):
        prepare(list(sources), place, zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0.2, seed=1)


def test_the_same_chat_in_two_sources_stands_on_one_side_of_the_split(tmp_path: Path) -> None:
    rows = [{key: value for key, value in chat_row(f"Hi {i}", "Hello.", "").items() if key != "id"} for i in range(60)]
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", rows) for name in "ab"]
    store = stored(tmp_path, [Source(str(path)) for path in paths])
    held_out = {store.ids[i] for i in store.holdout_indices}
    assert held_out
    assert held_out.isdisjoint({store.ids[i] for i in store.train_indices})


def test_no_row_at_all_is_an_error_that_names_the_source(tmp_path: Path) -> None:
    a, b = two_files(tmp_path)
    b.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.jsonl holds no rows"):
        stored(tmp_path, [Source(str(a)), Source(str(b))])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file in it ends in"):
        list(raw_rows(Source(str(tmp_path / "empty"))))


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"instruction": "Sum", "input": "1 2", "output": "3"}, "Sum\n\n1 2"),
        ({"instruction": "Hi", "input": "", "output": "3"}, "Hi"),
        ({"instruction": "Hi", "input": None, "response": "3", "text": "### Hi ### 3"}, "Hi"),
        ({"prompt": "Hi", "completion": "3"}, "Hi"),
        ({"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "3"}]}, "Hi"),
    ],
)
def test_instruction_and_prompt_rows_are_chats(row: dict[str, Any], asked: str, tmp_path: Path) -> None:
    [conversation] = read(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert isinstance(conversation, Conversation)
    assert [(m["role"], m["content"]) for m in conversation.messages] == [("user", asked), ("assistant", "3")]


def test_alpaca_history_and_system_come_before_the_question(tmp_path: Path) -> None:
    row = {"system": "S", "history": [["Q", "A"]], "instruction": "I", "output": "O"}
    [conversation] = read(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert [m["content"] for m in conversation.messages] == ["S", "Q", "A", "I", "O"]
