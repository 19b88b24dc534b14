"""What a command advises to type leads to the same place as the command itself."""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagelet.cli.kubectl.kubectl import Target
from pagelet.cli.ps import app as ps
from pagelet.local.state_dir import StateDir, default_state_dir


def test_a_hint_names_the_state_directory_unless_it_is_the_usual_one(tmp_path: Path) -> None:
    assert StateDir(default_state_dir()).command("down") == "pagelet down"
    other = tmp_path / "of mine"
    hint = ["pagelet", "logs", "sim", "--state-dir", str(other)]
    assert shlex.split(StateDir(other).command("logs sim")) == hint
    told = CliRunner().invoke(ps, ["--state-dir", str(other)])
    assert told.exit_code == 1
    assert told.output.endswith(f"start with: pagelet up -f FILE --state-dir '{other}'\n")


@pytest.mark.parametrize(
    ("namespace", "context", "flags"),
    [
        (None, None, ""),
        ("team", None, " --namespace=team"),
        ("team", "a b", " --namespace=team '--context=a b'"),
    ],
)
def test_a_hint_of_the_plugin_names_namespace_and_context(
    namespace: str | None, context: str | None, flags: str
) -> None:
    target = Target(namespace, context)
    assert target.hint("status", "chat") == f"kubectl pagelet status chat{flags}"


def test_helm_is_to_install_where_kubectl_looked() -> None:
    unknown = 'error: the server doesn\'t have a resource type "inferenceservices"'
    advice = str(Target("team", "far").failure(unknown))
    assert "helm install pagelet charts/pagelet --namespace=pagelet-system" in advice
    assert "--kube-context=far" in advice
    assert "--kube-context" not in str(Target("team", None).failure(unknown))
