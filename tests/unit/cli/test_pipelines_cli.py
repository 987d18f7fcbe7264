"""`assigner pipeline`: what it wants, and what it says when Spark or Java is missing. No session is started here."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import assigner.cli.submit
from assigner.cli import main
from assigner.cli.commands.pipeline import pipeline
from assigner.cli.commands.pipeline_runs import Job
from assigner.errors import InvalidInput
from assigner.spark.jobs.sample_ownership import sample_log
from assigner.spark.jobs.sql import statements

NAMES = ("audit", "loads", "lag", "simulate")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


def test_every_pipeline_is_listed_and_explains_itself() -> None:
    listed = run("--help").output
    for name in NAMES:
        assert name in listed
        assert "--sample" in run(name, "--help").output


@pytest.mark.parametrize("name", NAMES)
def test_without_data_the_two_ways_to_have_some_are_named(name: str) -> None:
    result = run(name)
    assert result.exit_code == 2
    assert "give --input with your data, or --sample" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit", "--input", "x", "--sample"], "give --input with your data, or --sample"),
        (["audit", "--input", "x"], "give --output"),
        (["audit", "--sample", "--conf", "nonsense"], "--conf 'nonsense' is not KEY=VALUE"),
        (["lag", "--input", "x", "--output", "y"], "give --events"),
        (["loads", "--sample", "--publish", "127.0.0.1:1"], "--publish and --group belong together"),
        (["loads", "--sample", "--publish", "nowhere", "--group", "g"], "--publish: 'nowhere' is not host:port"),
        (["loads", "--sample", "--publish", "h:1", "--group", "g", "--tls-ca", "/no"], "check the --tls options"),
        (["loads", "--sample", "--smoothing", "nan"], "--smoothing': nan is not a number of seconds"),
        (["lag", "--sample", "--events", "x"], "leave out --events, or give --input"),
        (["lag", "--sample", "--window", "inf"], "--window': inf is not in the range"),
        (["simulate", "--sample", "--groups", "0"], "--groups"),
        (["simulate", "--sample", "--picture", "x.bmp"], "--picture': 'x.bmp' does not end in .svg, .png, .pdf"),
        (["adit", "--sample"], "there is no pipeline 'adit'; choose one of audit, lag, loads, simulate"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_a_missing_extra_is_named_with_the_remedy() -> None:
    """In a process of its own, because what was imported once can't be made missing."""
    script = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pyarrow' else find(name, *rest)\n"
        "from assigner.cli import main\n"
        "main(['pipeline', 'audit', '--sample', '--json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    error = json.loads(done.stderr)["error"]
    assert error["kind"] == "missing_requirement"
    assert "pyarrow" in error["message"]
    assert "pip install '.[spark]'" in error["message"]


def test_a_sample_without_overlaps_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"give an --overlap-limit of 0\.001 s or more"):
        sample_log(overlap_limit=0.0)


def test_missing_java_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    result = run("audit", "--sample")
    assert result.exit_code == 2
    assert "Spark needs Java 17 and there is none: install it" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("master", "says"),
    [
        ("spark://127.0.0.1:1", "--master spark://127.0.0.1:1 can't be reached (127.0.0.1:1: [Errno 111]"),
        ("spark://nowhere", "--master spark://nowhere is no address of a cluster; give spark://HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_named_before_spark_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, master: str, says: str
) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("assigner.spark.jobs.session.require_java", lambda: None)
    result = run("audit", "--sample", "--master", master)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_commands_that_need_no_spark_do_not_import_it() -> None:
    script = "import sys; from assigner.cli.commands import pipeline; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("file", ["audit.sql", "loads.sql", "lag.sql", "simulate.sql"])
def test_every_statement_has_a_name_of_its_own(file: str) -> None:
    found = statements(file)
    assert all(name.isidentifier() and "SELECT" in text for name, text in found.items())


MANIFESTS = sorted((Path(__file__).parents[3] / "deploy" / "spark").glob("*.yaml"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_the_arguments_of_a_manifest_are_those_of_the_command(manifest: Path) -> None:
    _, _, rest = manifest.read_text().partition("arguments:\n")
    name, *arguments = [line.strip()[2:] for line in takewhile(lambda line: line.strip()[:2] == "- ", rest.split("\n"))]
    command = pipeline.get_command(click.Context(pipeline), name)
    assert command is not None
    given = command.make_context(name, arguments).params
    Job(name, **{key: given[key] for key in Job.__struct_fields__ if key != "name"}).check()


def test_there_is_a_manifest_of_an_application_and_one_of_a_scheduled_one() -> None:
    kinds = {line.split()[1] for path in MANIFESTS for line in path.read_text().splitlines() if line[:5] == "kind:"}
    assert kinds == {"SparkApplication", "ScheduledSparkApplication"}


def test_the_script_for_spark_submit_is_the_command() -> None:
    """Run as spark-submit runs it: a file, from anywhere."""
    script = Path(assigner.cli.submit.__file__).with_name("pipeline.py")
    done = subprocess.run([sys.executable, str(script), "audit"], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 2
    assert "give --input with your data, or --sample" in " ".join(done.stderr.split())
