"""Which interpreter a process really runs: real ones, in environments, renamed, in file systems of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import venv
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from stepscope.errors import DeviceError, PartNotInstalledError, StepscopeError, UsageError
from stepscope.probe import probe, run
from stepscope.probe.target import find_target

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAIT = "import sys, time; print('ready', flush=True); time.sleep(120)"
_SITE = Path(psutil.__file__).parents[1]


@contextmanager
def running(*command: str | Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said it is ready, ended afterwards."""
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, **how) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def served(*command: str | Path, **how: Any) -> Iterator[int]:
    """A server of HTTP on a port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(part) for part in (*command, "-m", "http.server", port, "--bind", "127.0.0.1")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **how}
    with subprocess.Popen(words, **quiet) as process:  # noqa: S603
        try:
            for _ in range(200):
                with socket.socket() as client:
                    if not client.connect_ex(("127.0.0.1", port)):
                        break
                time.sleep(0.05)
            yield port
        finally:
            process.kill()


def fake_engine(folder: Path, version: str) -> Path:
    """A package called sglang, with nothing in it but its version."""
    package = folder / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('an import runs this')\n")
    (package / "version.py").write_text(f"__version__ = {version!r}\n")
    return folder


@pytest.fixture(scope="module", name="environment")
def environment_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with an engine of its own."""
    folder = tmp_path_factory.mktemp("server")
    venv.create(folder, symlinks=True, with_pip=False)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    fake_engine(site, "9.9.9")
    metadata = site / "sglang-9.9.8.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.8\n")
    return folder


def versions(found: Any) -> dict[str, tuple[str | None, str | None, str | None]]:
    return {one.name: (one.version, one.source_version, one.path) for one in found.packages}


def test_the_packages_are_those_of_the_servers_environment_not_of_this_one(environment: Path) -> None:
    with running(environment / "bin/python", "-c", _WAIT) as process:
        found = probe(str(process.pid))
    site = next((environment / "lib").glob("python*")) / "site-packages"
    assert versions(found)["sglang"] == ("9.9.8", "9.9.9", str(site / "sglang"))
    assert "torch" not in versions(found)
    assert (found.server.pid, found.server.python) == (process.pid, str(environment / "bin/python"))
    assert found.interpreter.prefix == str(environment)
    assert found.interpreter.version == sys.version.split()[0]


def test_a_url_leads_to_the_process_that_listens(environment: Path, tmp_path: Path) -> None:
    with served(environment / "bin/python", cwd=tmp_path) as port:
        for asked in (f"http://127.0.0.1:{port}/v1", f"localhost:{port}", f"http://0.0.0.0:{port}"):
            found = probe(asked)
            assert found.server.python == str(environment / "bin/python")
            assert found.server.cwd == str(tmp_path)


def test_pythonpath_and_the_current_folder_count_as_they_do_for_the_server(environment: Path, tmp_path: Path) -> None:
    on_path, here = fake_engine(tmp_path / "path", "1.0"), fake_engine(tmp_path / "here", "2.0")
    how = {"env": {**os.environ, "PYTHONPATH": str(on_path)}, "cwd": here}
    script = tmp_path / "script.py"
    script.write_text(_WAIT)
    python = environment / "bin/python"
    expected = {
        ("-um", "wait"): here,  # the current folder is first
        ("-X", "utf8", "-c", _WAIT): here,
        (str(script),): on_path,  # the script's folder is, and holds none
        ("-I", "-c", _WAIT): None,  # isolated: neither
    }
    (here / "wait.py").write_text(_WAIT)
    for arguments, folder in expected.items():
        with running(python, *arguments, **how) as process:
            path = versions(probe(str(process.pid)))["sglang"][2]
        site = next((environment / "lib").glob("python*")) / "site-packages"
        assert path == str((folder or site) / "sglang")


def test_the_servers_secrets_are_not_handed_on_and_noise_does_no_harm(environment: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nwith open({str(said)!r} + f'/{{os.getpid()}}', 'w') as file: print(dict(os.environ), file=file)\n"
        "if 'HF_TOKEN' not in os.environ: print('noise')\n"
    )
    secret = {**os.environ, "HF_TOKEN": "hf_secret", "PYTHONPATH": str(tmp_path)}
    with running(environment / "bin/python", "-c", _WAIT, env=secret) as process:
        found = probe(str(process.pid))
    assert found.packages
    (own,) = (file for file in said.iterdir() if file.name != str(process.pid))
    assert "hf_secret" in (said / str(process.pid)).read_text()
    assert "hf_secret" not in own.read_text()
    assert "PYTHONPATH" in own.read_text()


def test_a_process_that_renamed_itself_is_known_by_what_it_loaded(environment: Path) -> None:
    site = next((environment / "lib").glob("python*")) / "site-packages"
    module = next(_SITE.glob("psutil/_psutil_linux*.so"))
    (site / "loaded").mkdir(exist_ok=True)
    shutil.copy(module, site / "loaded" / module.name)
    load = f"import ctypes; ctypes.CDLL({str(site / 'loaded' / module.name)!r}, mode=1); {_WAIT}"
    with running("server::worker", "-c", load, executable=environment / "bin/python") as process:
        target = find_target(str(process.pid))
    assert (target.python, target.python_found_by) == (
        str(environment / "bin/python"),
        "the libraries that it has loaded",
    )


def test_a_name_that_is_another_program_is_not_believed() -> None:
    other = shutil.which("sleep") or ""
    with running(other, "-c", _WAIT, executable=sys.executable) as process:
        target = find_target(str(process.pid))
    assert os.path.realpath(target.python) == os.path.realpath(sys.executable)
    assert target.python_found_by != "its command line"


def test_the_command_line_tells_backend_and_cache_and_no_key(environment: Path) -> None:
    arguments = [
        "--attention-backend",
        "flashinfer",
        "--kv-cache-dtype=fp8_e4m3",
        "--api-key",
        "sk-1",
        "--trust-remote-code",
    ]
    with running(environment / "bin/python", "-c", _WAIT, *arguments) as process:
        found = probe(str(process.pid))
    assert found.server.arguments == {"attention-backend": "flashinfer", "kv-cache-dtype": "fp8_e4m3"}


needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux"
    or os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,  # noqa: S607
    reason="file systems of one process need root and unshare",
)


@contextmanager
def contained(folder: Path, python: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sees an engine in a folder which is empty for all others."""
    hidden = folder / "hidden"
    hidden.mkdir()
    engine = fake_engine(folder / "engine", "3.0")
    (engine / "sglang" / "link").symlink_to("/etc/hostname")
    enter = f'mount -t tmpfs none {hidden} && cp -r {engine}/sglang {hidden} && exec {python} -c "{_WAIT}"'
    how = {"env": {**os.environ, "PYTHONPATH": str(hidden)}}
    with running("unshare", "--mount", "sh", "-c", enter, **how) as process:
        assert not list(hidden.iterdir())
        yield process


@needs_namespaces
def test_a_container_is_entered(environment: Path, tmp_path: Path) -> None:
    with contained(tmp_path, environment / "bin/python") as process:
        found = probe(str(process.pid))
    assert found.server.root == f"/proc/{process.pid}/root"
    assert found.interpreter.was_run
    assert versions(found)["sglang"][1:] == ("3.0", str(tmp_path / "hidden/sglang"))


@needs_namespaces
def test_a_container_that_cannot_be_entered_is_read(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nsenter" else real(name))
    with contained(tmp_path, environment / "bin/python") as process:
        found = probe(str(process.pid))
    assert not found.interpreter.was_run
    assert any("cannot be entered (nsenter is not installed)" in note for note in found.notes)
    assert versions(found)["sglang"] == ("9.9.8", "3.0", str(tmp_path / "hidden/sglang"))
    assert found.interpreter.version.startswith("3.")


def others_python() -> Path:
    """A Python that other users may run."""
    for python in (Path(sys.base_prefix) / "bin" / "python3", Path("/usr/bin/python3")):
        with suppress(OSError):
            if not subprocess.run([python, "-c", ""], user=65534, group=65534, check=False).returncode:  # noqa: S603
                return python
    pytest.skip("no Python here may be run by others")


@needs_namespaces
def test_as_root_the_script_runs_as_the_servers_user(environment: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.touch()
    said.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents, *environment.parents, environment):
        if folder.stat().st_mode & 0o005 != 0o005 and folder.owner() == "root" and folder.is_relative_to("/tmp"):  # noqa: S108
            folder.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nwith open({str(said)!r}, 'a') as file:\n"
        "    print(os.getuid(), os.getgid(), os.getgroups(), file=file)\n"
    )
    python = others_python()
    how = {"user": 65534, "group": 65534, "extra_groups": [], "env": {"PYTHONPATH": str(tmp_path)}}
    with running(python, "-c", _WAIT, **how) as process:
        probe(str(process.pid))
    lines = said.read_text().splitlines()
    assert lines == ["65534 65534 []"] * 2


def refused(asked: str | Path) -> StepscopeError:
    with pytest.raises(StepscopeError) as caught:
        probe(str(asked))
    assert "\n" not in str(caught.value)
    return caught.value


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    text = tmp_path / "python"
    text.write_text("")
    cases: list[tuple[str | Path, type[StepscopeError], str]] = [
        (str(gone.pid), DeviceError, f"there is no process {gone.pid}"),
        (f"http://localhost:{free_port()}", DeviceError, "nothing here listens"),
        ("http://192.0.2.1:30000", UsageError, "is another machine; probe must run where the server runs"),
        ("http://no-such-host.invalid:30000", UsageError, "probe must run where the server runs"),
        ("http://localhost:99999", UsageError, "is no URL"),
        ("unix://socket", UsageError, "names no port"),
        (tmp_path / "none", UsageError, "does not exist"),
        (tmp_path, UsageError, "is a folder"),
        (text, UsageError, "is not executable"),
        (shutil.which("true") or "true", UsageError, "is no Python"),
        ("1" * 10, DeviceError, "there is no process"),
    ]
    for asked, kind, part in cases:
        error = refused(asked)
        assert type(error) is kind, asked
        assert part in str(error)


def test_a_process_that_is_no_python_is_named() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:  # noqa: S607
        try:
            error = refused(str(process.pid))
        finally:
            process.kill()
    assert isinstance(error, UsageError)
    assert f"process {process.pid} runs " in str(error)
    assert str(error).endswith("sleep, which is no Python")


def test_a_process_of_another_user_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: object) -> str:
        raise psutil.AccessDenied(1)

    with running(sys.executable, "-c", _WAIT) as process:
        monkeypatch.setattr(psutil.Process, "exe", denied)
        error = refused(str(process.pid))
    assert isinstance(error, DeviceError)
    assert "belongs to" in str(error)
    assert "run probe as that user or as root" in str(error)


def test_a_listener_of_another_user_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(sys.executable) as port:
        real = psutil.net_connections

        def hidden(kind: str) -> list[Any]:
            return [one._replace(pid=None) for one in real(kind)]

        monkeypatch.setattr(psutil, "net_connections", hidden)
        assert "a process of another user listens" in str(refused(f"localhost:{port}"))


def test_a_zombie_is_said() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert "has ended" in str(refused(str(process.pid)))


def test_an_interpreter_that_is_gone_is_said(tmp_path: Path) -> None:
    copy = tmp_path / "python3"
    shutil.copy(Path(sys.executable).resolve(), copy)
    home = {**os.environ, "PYTHONHOME": sys.base_prefix}
    home["LD_LIBRARY_PATH"] = f"{sys.base_prefix}/lib"
    with running(copy, "-c", _WAIT, env=home) as process:
        copy.unlink()
        error = refused(str(process.pid))
    assert isinstance(error, DeviceError)
    assert "has been deleted or replaced" in str(error)


def script(folder: Path, text: str) -> Path:
    """A program that is called as a Python is, and is none."""
    path = folder / "python3"
    path.write_text(textwrap.dedent(text).lstrip())
    path.chmod(0o755)
    return path


def test_one_that_does_not_answer_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECONDS", 0.5)
    fake = script(tmp_path, f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 60\n")
    error = refused(fake)
    assert isinstance(error, DeviceError)
    assert "did not answer within 0.5 s" in str(error)
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text()))


def test_one_that_prints_without_end_is_given_up(tmp_path: Path) -> None:
    error = refused(script(tmp_path, "#!/bin/sh\nyes\n"))
    assert isinstance(error, DeviceError)
    assert "printed more than 1 MiB" in str(error)


def test_one_that_fails_is_quoted(tmp_path: Path) -> None:
    error = refused(script(tmp_path, "#!/bin/sh\necho first >&2\necho 'no such library' >&2\nexit 3\n"))
    assert "no Python that answers (exit code 3): no such library" in str(error)


def test_an_answer_of_another_form_is_refused(tmp_path: Path) -> None:
    fake = script(
        tmp_path,
        f"""
        #!{sys.executable}
        import json, sys
        print(json.loads(sys.argv[-1])["mark"] + '{{"version": 3}}')
        """,
    )
    assert "gave an answer that cannot be read" in str(refused(fake))


def test_without_psutil_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    error = refused("1")
    assert isinstance(error, PartNotInstalledError)
    assert "pip install 'stepscope[capture]'" in str(error)


def test_a_named_python_needs_no_psutil(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = probe(str(environment / "bin/python"))
    assert versions(found)["sglang"][:2] == ("9.9.8", "9.9.9")
    assert found.server.pid is None
