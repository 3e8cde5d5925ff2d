"""The operator's command refuses what it cannot use: with exit code 2, the option's name, and what would do."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import kubernetes.client
import pytest
from rap_operator.cli import main, run
from rap_operator.options import parser

REFUSED = {
    "no workers": (["--workers", "0"], "--workers: '0' is no whole number of 1 to 64"),
    "half a worker": (["--workers", "1.5"], "--workers: '1.5' is no whole number"),
    "no requests": (["--kube-api-qps", "0"], "--kube-api-qps: '0' is no number of 1 or more"),
    "not a number": (["--kube-api-qps", "nan"], "--kube-api-qps: 'nan' is no number"),
    "never": (["--rollback-after-seconds", "inf"], "--rollback-after-seconds: 'inf' is no number"),
    "before now": (["--scrape-interval-seconds=-1"], "--scrape-interval-seconds: '-1' is no number of 0 or more"),
    "no port": (["--metrics-port", "99999"], "--metrics-port: '99999' is no whole number of 0 to 65535"),
    "a gap": (["--namespaces", "ads,,ranking"], "--namespaces: '' is no name of a namespace"),
    "a space": (["--namespaces", "ads, ranking"], "--namespaces: ' ranking' is no name of a namespace"),
    "a Lease": (["--lease-name", "A_B"], "--lease-name: 'A_B' is no name of a Lease"),
    "a URL": (["--prometheus-url", "prometheus:9090"], "--prometheus-url: 'prometheus:9090' is no URL"),
    "nobody switches": (["--max-switching", "0"], "--max-switching: '0' is no whole number of 1 or more"),
    "a file": (
        ["--scrape-ca-file", "/nowhere/ca.crt"],
        "--scrape-ca-file: /nowhere/ca.crt cannot be read: No such file",
    ),
    "no cluster": (["--kubeconfig", "/nowhere/config"], "no cluster is named by /nowhere/config"),
    "another file": (["--kubeconfig", __file__], f"no cluster is named by {__file__}"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_an_option_that_cannot_be_used_is_named_with_what_would_do(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, said = REFUSED[name]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        options = parser().parse_args(["--metrics-port", str(taken.getsockname()[1]), "--no-lease"])
        with pytest.raises(SystemExit) as ended:
            run(options, kubernetes.client.ApiClient(kubernetes.client.Configuration()), threading.Event())
    assert ended.value.code == 2
    assert "Address already in use" in capsys.readouterr().err


def test_a_file_that_may_not_be_read_is_named_before_anything_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--scrape-token-file", str(tmp_path)])
    assert ended.value.code == 2
    assert f"--scrape-token-file: {tmp_path} cannot be read: Is a directory" in " ".join(
        capsys.readouterr().err.split()
    )
