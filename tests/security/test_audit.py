"""The check against known vulnerabilities, on an advisory database of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from security.audit import found_in, main, pins

OPERATOR = pins("operator")


def advisory(folder: Path, name: str, **part: object) -> None:
    place = folder / "vulns" / name
    place.mkdir(parents=True, exist_ok=True)
    text = {"id": "PYSEC-1", "affected": [{"package": {"ecosystem": "PyPI", "name": name}, **part}]}
    (place / "PYSEC-1.yaml").write_text(yaml.safe_dump(text))


@pytest.mark.parametrize(
    ("events", "is_found"),
    [
        ([{"introduced": "0"}], True),
        ([{"introduced": "0"}, {"fixed": "1.4"}], False),
        ([{"introduced": "0"}, {"fixed": "1.4.1"}], True),
        ([{"introduced": "1.4"}, {"last_affected": "1.4"}], True),
        ([{"introduced": "0"}, {"last_affected": "1.3"}], False),
        ([{"introduced": "1.5"}], False),
        ([{"introduced": "1.3"}, {"fixed": "1.3.9"}, {"introduced": "1.4rc1"}, {"fixed": "2"}], True),
    ],
)
def test_a_range_of_versions_is_read_as_osv_means_it(
    tmp_path: Path, events: list[dict[str, str]], is_found: bool
) -> None:
    advisory(tmp_path, "thing", ranges=[{"type": "ECOSYSTEM", "events": events}])
    assert found_in(tmp_path, ["other==1.4", "thing==1.4"]) == (["thing==1.4: PYSEC-1"] if is_found else [])


def test_a_known_vulnerability_of_a_locked_package_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vulns").mkdir()
    assert main(["--advisories", str(tmp_path), "operator"]) == 0
    name, _, version = OPERATOR[0].partition("==")
    advisory(tmp_path, name, versions=[version])
    assert main(["--advisories", str(tmp_path), "operator"]) == 1
    assert f"{OPERATOR[0]}: PYSEC-1" in capsys.readouterr().out


def test_a_folder_without_advisories_is_no_clean_bill(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--advisories", str(tmp_path)])


def test_what_is_checked_is_all_that_the_images_hold() -> None:
    names = {pin.partition("==")[0] for pin in OPERATOR}
    assert {"kubernetes", "pydantic", "urllib3", "prometheus-client"} <= names
    assert "torch" not in names
    assert any(pin.startswith("torch==") for pin in pins("trainer-cuda"))
