"""The files that came along with a job: unpacked whole, and nowhere else."""

import io
import tarfile
from pathlib import Path

import pytest
from roll_workers.errors import UserError
from roll_workers.runtime import source
from roll_workers.runtime.source import unpack


def archive(path: Path, files: dict[str, str], *others: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
        for member in others:
            packed.addfile(member)
    return path


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


def test_files_and_folders_are_where_the_job_looks_for_them(tmp_path: Path) -> None:
    packed = archive(tmp_path / "source.tar.gz", {"rewards.py": "x = 1", "data/train.jsonl": "{}"})
    unpack(packed, tmp_path / "deep" / "source")
    assert (tmp_path / "deep/source/rewards.py").read_text() == "x = 1"
    assert (tmp_path / "deep/source/data/train.jsonl").read_text() == "{}"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["source"], "nothing is left over"


@pytest.mark.parametrize("given", [None, Path("/nowhere/source.tar.gz")])
def test_a_job_without_files_of_its_own_has_none(tmp_path: Path, given: Path | None) -> None:
    unpack(given, tmp_path / "source")
    assert not (tmp_path / "source").exists()


def test_the_same_archive_is_unpacked_once_and_another_one_replaces_it(tmp_path: Path) -> None:
    into = tmp_path / "source"
    packed = archive(tmp_path / "source.tar.gz", {"a.py": "1", "b.py": "1"})
    unpack(packed, into)
    before = (into / "a.py").stat().st_ino
    unpack(packed, into)
    assert (into / "a.py").stat().st_ino == before
    unpack(archive(packed, {"a.py": "2"}), into)
    assert (into / "a.py").read_text() == "2"
    assert not (into / "b.py").exists()


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outside.py"),
        tarfile.TarInfo("inside/../../outside.py"),
        link("away", "/etc/passwd"),
        link("away", "../../outside.py"),
        link("away", "../outside.py", tarfile.LNKTYPE),
        link("device", "", tarfile.CHRTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda m: f"{m.name}-{m.type.decode()}",
)
def test_nothing_leads_outside(tmp_path: Path, member: tarfile.TarInfo) -> None:
    packed = archive(tmp_path / "source.tar.gz", {"a.py": "1"}, member)
    with pytest.raises(UserError, match="ROLL_SOURCE_ARCHIVE"):
        unpack(packed, tmp_path / "job" / "source")
    assert not (tmp_path / "outside.py").exists()
    assert not (tmp_path / "job" / "source").exists(), "nothing half unpacked is found"


def test_a_name_from_the_root_stays_inside(tmp_path: Path) -> None:
    packed = archive(tmp_path / "source.tar.gz", {"/rewards.py": "x = 1"})
    unpack(packed, tmp_path / "source")
    assert (tmp_path / "source" / "rewards.py").read_text() == "x = 1"


@pytest.mark.parametrize(
    ("limit", "value", "files"),
    [("MOST_BYTES", 10, {"a": "x" * 11}), ("MOST_FILES", 2, dict.fromkeys("abc", ""))],
)
def test_what_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, files: dict[str, str]
) -> None:
    monkeypatch.setattr(source, limit, value)
    with pytest.raises(UserError, match="it holds more than"):
        unpack(archive(tmp_path / "source.tar.gz", files), tmp_path / "source")


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive_is_the_users_error(tmp_path: Path, content: bytes) -> None:
    packed = tmp_path / "source.tar.gz"
    packed.write_bytes(content)
    with pytest.raises(UserError, match="can't be unpacked"):
        unpack(packed, tmp_path / "source")
