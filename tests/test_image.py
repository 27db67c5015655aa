"""The Dockerfile, step by step and without an engine: what it copies is enough, and what it installs is pinned."""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEPS = re.findall(r"(?m)^([A-Z]+) (.*(?:\\\n.*)*)$", (ROOT / "Dockerfile").read_text())
PINNED = re.compile(r"(?m)^(?P<name>[a-z0-9-]+)(?:\[[a-z,]+\])?==(?P<rest>[^#]*?)(?=^\S|^    #|\Z)")

# The installed program, and not this tree's.
PROGRAM = """
import sys, services
assert services.__file__.startswith(sys.argv.pop(1))
from services.cli.main import main
main()
"""


def pins(name: str) -> dict[str, str]:
    """What a file pins: each package with its version, its marker and its hashes."""
    return {found["name"]: found["rest"].strip() for found in PINNED.finditer((ROOT / name).read_text())}


def package(requirement: str) -> str:
    """Its name: without extras, versions and markers."""
    return re.split(r"[^a-z0-9-]", requirement)[0]


def test_the_image_installs_what_the_tests_ran_with() -> None:
    """The same versions and hashes; all that the package needs, and no tool of ours."""
    image, tested = pins("constraints-image.txt"), pins("constraints.txt")
    assert image.items() <= tested.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {package(each) for each in project["dependencies"]} <= set(image)
    tools = {package(each) for each in project["optional-dependencies"]["dev"]} - {"setuptools"}
    assert not tools & set(image)


def test_the_image_names_no_registry_and_runs_as_nobody_in_particular() -> None:
    """Whose mirror it comes from is the builder's business; root is nobody's."""
    assert "://" not in (ROOT / "Dockerfile").read_text()
    (base,) = [rest for verb, rest in STEPS if verb == "FROM"]
    assert "/" not in base
    (user,) = [rest for verb, rest in STEPS if verb == "USER"]
    assert user == "counterfoil"


def test_packages_are_installed_before_the_code_is_copied() -> None:
    """So that a change of the code installs nothing again."""
    order = [f"{verb} {rest}" for verb, rest in STEPS]
    installed = next(index for index, step in enumerate(order) if "--require-hashes" in step)
    assert not [step for step in order[:installed] if step.startswith("COPY") and "constraints-image.txt" not in step]


def test_what_the_image_copies_is_the_whole_program(tmp_path: Path) -> None:
    """Installed from these files alone, away from the tree, it migrates and serves its own help."""
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for verb, rest in STEPS:
        if verb == "COPY":
            *names, _ = rest.split()
            for name in names:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
    (install,) = [rest for verb, rest in STEPS if verb == "RUN" and "--no-deps" in rest]
    options = install.partition("&&")[0].split()[2:-1]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", target, source],
        check=True, cwd=tmp_path, timeout=100, capture_output=True,
    )  # fmt: skip
    for store in ("journal", "inventory"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(target), "migrate", store],
            env={"PYTHONPATH": str(target), f"COUNTERFOIL_{store.upper()}_DATABASE_URL": f"sqlite:///{tmp_path}/{store}.db"},
            cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (target / "services" / "drill" / "incidents.jsonl").is_file()


def test_the_build_is_sent_what_it_copies_and_nothing_else() -> None:
    """A secret in the working folder never reaches the build."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {name for verb, rest in STEPS if verb == "COPY" for name in rest.split()[:-1]}
    assert sent == copied
    assert not [name for name in sent if fnmatch(name, "*.env*")]
