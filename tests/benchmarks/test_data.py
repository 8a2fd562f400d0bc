"""The public data sets: loaders on small files in the formats of the sources, downloads, and the page about them."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from benchmarks import data, data_sources

PAGE = Path(__file__).parents[2] / "docs" / "data-sets.md"


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return path


def rows(lines: list[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines]


def test_clinc150_has_a_part_for_each_list_and_one_for_what_is_out_of_scope(tmp_path):
    source = {key: [[f"{key} {n}", "greet"] for n in range(3)] for key in ("train", "val", "test")}
    source |= {f"oos_{key}": [[f"outside {key}", "oos"]] for key in ("train", "val", "test")}
    (tmp_path / "data_full.json").write_text(json.dumps(source))
    made = data_sources.clinc150([tmp_path / "data_full.json"])
    # Python's random.Random(0) puts three rows into the order 0, 2, 1.
    assert [row["text"] for row in rows(made["train.jsonl"])] == ["train 0", "train 2", "train 1"]
    assert list(made) == ["train.jsonl", "valid.jsonl", "test.jsonl", "out_of_scope.jsonl"]
    assert rows(made["out_of_scope.jsonl"])[1] == {"text": "outside val", "labels": ["oos"], "split": "oos_val"}


def test_newsgroups_are_read_as_latin_1_with_group_and_number(tmp_path):
    members = {f"20news-bydate-{part}/sci.space/{n}": b"caf\xe9" for part, n in (("train", 10), ("test", 9))}
    made = data_sources.newsgroups([archive(tmp_path / "news.tar.gz", members)])
    assert rows(made["train.jsonl"]) == [{"text": "café", "labels": ["sci.space"], "id": 10}]
    assert len(made["test.jsonl"]) == 1


def test_reuters_is_split_as_modapte(tmp_path):
    def article(number: int, split: str, topics: str, text: str) -> str:
        head = f'<REUTERS TOPICS="{topics}" LEWISSPLIT="{split}" CGISPLIT="TRAINING-SET" OLDID="1" NEWID="{number}">'
        topic = "<TOPICS><D>grain</D><D>corn</D></TOPICS>\n<PLACES><D>usa</D></PLACES>"
        return f"{head}\n<DATE> 1-MAR-1987 </DATE>\n{topic}\n<TEXT>&#2;\n{text}</TEXT>\n</REUTERS>\n"

    body = "<TITLE>PRICES &lt;X></TITLE>\n<DATELINE> ROME - </DATELINE><BODY>Up.\n Reuter\n&#3;</BODY>"
    articles = [article(9, "TRAIN", "YES", "raw &#3;"), article(2, "TRAIN", "YES", body), article(3, "TRAIN", "NO", "")]
    (tmp_path / "reut2-000.sgm").write_text("".join([*articles, article(4, "TEST", "YES", "<TITLE>A</TITLE>")]))
    made = data_sources.reuters([tmp_path / "reut2-000.sgm"])
    assert [row["text"] for row in rows(made["train.jsonl"])] == ["PRICES <X>\nUp.\n Reuter", "raw"]
    assert rows(made["test.jsonl"]) == [{"text": "A", "labels": ["grain", "corn"], "id": 4, "date": "1-MAR-1987"}]


@pytest.fixture
def repository(tmp_path):
    """A repository with two commits, of which one touches too many files."""
    folder = tmp_path / "upstream"
    folder.mkdir()

    def run(*arguments: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run("init", "-q")
    run("config", "uploadpack.allowFilter", "true")
    run("config", "uploadpack.allowAnySHA1InWant", "true")
    for message, n in (("Add a\n\nSigned-off-by: A <a@example.org>", 1), ("Add many", 21), ("Change all", 2)):
        for number in range(n):
            (folder / f"{number}-en.txt").write_text(message)
        run("add", ".")
        run("commit", "-q", "-m", message)
    return folder.as_uri(), run("rev-parse", "HEAD")


def test_git_downloads_the_wanted_files_of_a_commit(repository, tmp_path):
    paths = data.check_out(*repository, ["1?-en.txt", "0-en.txt"], tmp_path / "cache")
    assert [path.name for path in paths] == [*(f"{n}-en.txt" for n in range(10, 20)), "0-en.txt"]
    assert paths == data.check_out(*repository, ["1?-en.txt", "0-en.txt"], tmp_path / "cache")
    assert not (paths[0].parent / "2-en.txt").exists()


def test_commits_are_messages_without_trailers_and_the_files_touched(repository, tmp_path):
    made = data_sources.git_commits(data.check_out(*repository, [], tmp_path / "cache"))
    found = [(row["text"], row["labels"]) for row in rows(made["train.jsonl"] + made["test.jsonl"])]
    assert found == [("Add a", ["0-en.txt"]), ("Change all", ["0-en.txt", "1-en.txt"])]


def test_gutenberg_is_in_order_of_release_without_records_that_lack_a_heading(tmp_path):
    def record(number: int, date: str, subject: str) -> str:
        value = "<rdf:value>{}</rdf:value>".format
        return (
            f'<pgterms:etext rdf:ID="etext{number}"><dc:title>A\n&amp; B</dc:title><dc:creator>Eve</dc:creator>'
            f"<dc:subject><dcterms:LCSH>{value(subject)}</dcterms:LCSH></dc:subject>"
            f"<dc:created><dcterms:W3CDTF>{value(date)}</dcterms:W3CDTF></dc:created></pgterms:etext>"
        ).replace(f"<dc:subject><dcterms:LCSH>{value('')}</dcterms:LCSH></dc:subject>", "")

    spaces = (
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:dc="http://purl.org/dc/elements/1.1/" '
        'xmlns:dcterms="http://purl.org/dc/terms/" xmlns:pgterms="http://www.gutenberg.org/rdfterms/"'
    )
    records = record(7, "2001-01-02", "Poetry") + record(8, "2001-01-01", "") + record(9, "2001-01-01", "Plays")
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("catalog.rdf", f"<rdf:RDF {spaces}>{records}</rdf:RDF>")
    path = archive(tmp_path / "g.tgz", {"package/test/samples/gutenberg.rdf.zip": zipped.getvalue()})
    made = rows(data_sources.gutenberg([path])["train.jsonl"])
    assert [(row["id"], row["text"], row["labels"]) for row in made] == [
        (9, "A & B", ["Plays"]),
        (7, "A & B", ["Poetry"]),
    ]


def test_wordnet_pairs_a_gloss_with_the_first_hypernym(tmp_path):
    noun = (
        "  1 the licence\n00001740 03 n 01 entity 0 000 | that which exists\n"
        "00002684 05 n 02 cat 0 true_cat 0 002 ~ 00001740 n 0000 @ 00001740 n 0000 | a feline  \n"
    )
    members = {"package/dict/data.noun": noun.encode(), "package/dict/data.verb": b""}
    made = data_sources.wordnet([archive(tmp_path / "w.tgz", members)])
    row = {"text": "a feline", "labels": ["entity.n00001740"], "words": ["cat", "true_cat"], "file": "noun.animal"}
    assert rows(made["train.jsonl"]) == [row]


def test_yso_gives_each_text_the_subjects_whose_files_hold_it(tmp_path):
    for name, text in (("p10", "Cats\nDogs\n"), ("p2", "Dogs\n")):
        (tmp_path / f"{name}-en.txt").write_text(f"http://www.yso.fi/onto/yso/{name} {name} name\nother names\n{text}")
    made = data_sources.yso_finna(list(tmp_path.iterdir()))
    assert sorted((row["text"], row["labels"]) for row in rows(made["train.jsonl"])) == [
        ("Cats", [0]),
        ("Dogs", [0, 1]),
    ]
    assert rows(made["labels.jsonl"])[1] == {"label": 1, "id": "p2", "name": "p2 name"}


def test_tib_records_keep_the_subjects_of_the_vocabulary(tmp_path):
    for part in ("train", "dev"):
        folder = tmp_path / part / "Article" / "en"
        folder.mkdir(parents=True)
        (folder / "3A1.txt").write_text("Title\nBody\n")
        (folder / "3A1.tsv").write_text("<gnd:1>\n<gnd:2>\n")
    (tmp_path / "gnd-core-en.tsv").write_text("<gnd:1>\tPhysik\tPhysics\n")
    made = data_sources.tib_core([path for path in tmp_path.rglob("*") if path.is_file()])
    row = {"text": {"title": "Title", "body": "Body\n"}, "labels": ["gnd:1"]}
    assert rows(made["train.jsonl"]) == rows(made["dev.jsonl"]) == [row]


@pytest.mark.parametrize("cells", ["{0 1, 2 1}", "1,0,1"], ids=["sparse", "dense"])
def test_arff_is_read_sparse_or_dense(tmp_path, cells):
    head = "@relation x\n@attribute 'a word' {0,1}\n@attribute b {0,1}\n@attribute TAG_x {0,1}\n@data\n"
    (tmp_path / "x.arff").write_text(f"{head}{cells}\n")
    made = data_sources.mulan([tmp_path / "x.arff"] * 2)
    assert made["train.txt"] == ["1 2 1", "0 0:1"]
    assert (made["features.txt"], made["labels.txt"]) == (["a word", "b"], ["TAG_x"])


def test_mldr_objects_have_labels_by_column_and_statistics_that_are_left_out():
    columns = {"Att1": [0.25, 0.0], "Class1": [0, 1], "Att2": [0.0, 3.0], ".labelcount": [0, 1], "SCUMBLE": [0, 0]}
    made = data_sources.mldr({"dataset": columns, "labels": {"index": [2]}})
    assert made.lines() == ["2 2 1", " 0:0.25", "0 1:3"]


def test_rcv1_drops_repeated_vectors_and_moves_the_labels_of_subset_1(monkeypatch):
    tables = [data_sources.Table(["f"], ["0", "1"], [([0], {0: f"{n}"}), ([0], {0: "9"})]) for n in (1, 2, 2, 4, 5)]
    monkeypatch.setattr(data_sources, "HALF", 1)
    monkeypatch.setattr(data_sources, "rda", lambda path: tables[int(path.name)])
    made = data_sources.rcv1([Path(str(n)) for n in range(5)])
    assert (sorted(made["train.txt"][1:]), made["test.txt"][1:]) == (["0 0:1", "0 0:2", "0 0:4"], ["0 0:9"])
    assert data_sources.rcv1_subset1([Path("0")])["test.txt"] == ["1 1 2", "1 0:9"]


def test_aloi_counts_from_zero(tmp_path):
    (tmp_path / "a.vw.gz").write_bytes(gzip.compress(b"796 | 1:4 6:2 \n"))
    assert data_sources.aloi([tmp_path / "a.vw.gz"] * 2)["test.txt"] == ["1 128 1000", "795 0:4 5:2"]


def client(answer: httpx.Response) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(lambda request: answer))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(404), "cannot download https://example.org/x: .*404"),
        (httpx.Response(200, content=b"other"), "has sha256 .* the source has changed"),
        (httpx.Response(200, content=b"much longer"), "is over 8 bytes"),
    ],
    ids=["missing", "changed", "too large"],
)
def test_a_download_that_is_not_the_source_is_refused(tmp_path, monkeypatch, answer, says):
    monkeypatch.setattr(data, "MAX_BYTES", 8)
    with pytest.raises(SystemExit, match=says):
        data.download("https://example.org/x", hashlib.sha256(b"right").hexdigest(), tmp_path, client(answer))


def test_a_set_is_built_once_downloaded_and_refused_in_another_size(tmp_path, monkeypatch):
    members = {f"20news-bydate-{part}/a/1": b"x" for part in ("train", "test")}
    content = archive(tmp_path / "n.tgz", members).read_bytes()
    found = ["https://example.org/x", hashlib.sha256(content).hexdigest()]
    sizes = {"train.jsonl": 1, "test.jsonl": 1}
    wanted = data.DataSet(task="", licence="", split="", load="newsgroups", sizes=sizes, archive=found)
    monkeypatch.setitem(data.SETS, "clinc150", wanted)
    assert not data.build("clinc150", tmp_path, tmp_path / "cache", client(httpx.Response(200, content=content)))
    assert b'"labels":["a"]' in gzip.decompress((tmp_path / "clinc150" / "train.jsonl.gz").read_bytes())
    wanted.sizes["train.jsonl"] = 2
    with pytest.raises(SystemExit, match=r"train\.jsonl has 1 lines, not 2"):
        data.build("clinc150", tmp_path, tmp_path / "cache", client(httpx.Response(500)))


@pytest.mark.parametrize("name", data.SETS)
def test_the_page_describes_the_set(name):
    one, page = data.SETS[name], " ".join(PAGE.read_text().split())
    sizes = [f"{size:,}" for file, size in one.sizes.items() if file.endswith(".jsonl") or file[:2] in ("tr", "te")]
    assert [told for told in (one.task.replace("->", "→"), one.licence, one.split, *sizes) if told not in page] == []
    assert hasattr(data_sources, one.load)
