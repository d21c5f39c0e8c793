"""Why torch does not import: torches that are broken in many ways, asked through the real zip."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra.outcome import Finding
from cpinfra.outcome import Severity
from cpinfra.proof import delivery
from cpinfra.software import why
from cpinfra.software import why_process
from cpinfra.worker import loading
from cpinfra.worker import why as worker_why
from cpinfra.worker.signals import RANK_BUG_EXIT

LONG_S = 60.0
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
VERSION = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker's zip."""
    return delivery.stage(tmp_path_factory.mktemp("worker"))


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without any package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return str(folder / "bin" / "python")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for packages, which is on PYTHONPATH."""
    folder = tmp_path / "site packages"
    folder.mkdir()
    return folder


@pytest.fixture
def ask(
    worker: Path, python: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Asks that interpreter, in an empty working folder, with more variables where they are given."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def _ask(**variables: str) -> dict[str, Any]:
        environment = {"PATH": os.defpath, "PYTHONPATH": str(site), **variables}
        return why.ask(python, worker, environment=environment, timeout_s=LONG_S)

    return _ask


def install(
    site: Path,
    source: str = "",
    *,
    version: str = VERSION,
    metadata: str = "2.13.0",
    tag: str = f"{TAG}-{TAG}-linux_",
) -> Path:
    """A torch of this source, with the metadata of a wheel."""
    folder = site / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text(source)
    (folder / "version.py").write_text(f"from typing import Optional\n{version}")
    machine = os.uname().machine if tag.endswith("_") else ""
    wheel = site / f"torch-{metadata}.dist-info"
    wheel.mkdir()
    (wheel / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}{machine}\n")
    return folder


def by_id(facts: Mapping[str, Any]) -> dict[str, Finding]:
    """Findings by id."""
    return {finding.id: finding for finding in why.findings(facts)}


# --------------------------------------------------------------------------------- which torch it is


def test_a_torch_against_which_nothing_speaks_is_told_so(
    ask: Callable[..., dict[str, Any]], site: Path
) -> None:
    """One finding, which blocks nothing and says what was looked at."""
    folder = install(site)
    facts = ask()

    assert facts["torch"] == {"kind": "package", "path": str(folder / "__init__.py"), "error": ""}
    assert facts["version"] == {"torch": "2.13.0+cu130", "cuda": "13.0", "hip": None}
    assert facts["distributions"][0]["fits"] is True
    (finding,) = why.findings(facts)
    assert (finding.id, finding.severity) == ("why-nothing-found", Severity.INFO)
    assert finding.got == f"torch 2.13.0+cu130 at {folder / '__init__.py'}, 0 libraries that each load"


@pytest.mark.parametrize(
    "source",
    [
        f"import os\nos.kill(os.getpid(), {signal.SIGSEGV.value})\n",
        "import time\ntime.sleep(3600)\n",
        "raise OSError('libcudart.so.13: cannot open shared object file')\n",
        "this is no Python",
    ],
    ids=["crashes", "hangs", "raises", "no-python"],
)
def test_nothing_of_torch_is_executed(ask: Callable[..., dict[str, Any]], site: Path, source: str) -> None:
    """What dies, hangs or raises at import does none of it here; the answer is the same."""
    install(site, source)

    assert list(by_id(ask())) == ["why-nothing-found"]


def test_a_version_file_is_read_and_not_executed(
    ask: Callable[..., dict[str, Any]], site: Path, tmp_path: Path
) -> None:
    """Whatever else stands in it."""
    install(site, version=f"{VERSION}open({str(tmp_path / 'executed')!r}, 'w')\n")

    assert ask()["version"]["torch"] == "2.13.0+cu130"
    assert not (tmp_path / "executed").exists()


def test_no_torch_at_all(ask: Callable[..., dict[str, Any]], python: str) -> None:
    """The interpreter is named, and the option."""
    facts = ask()
    found = by_id(facts)

    assert (facts["torch"]["kind"], list(found)) == ("absent", ["torch-missing"])
    assert python in found["torch-missing"].got
    assert "--python" in found["torch-missing"].remedy


def test_a_file_that_shadows_torch(ask: Callable[..., dict[str, Any]], site: Path, tmp_path: Path) -> None:
    """Both are named: what is found, and the real one behind it."""
    install(site)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "torch.py").write_text("raise SystemExit\n")

    finding = by_id(ask(PYTHONPATH=f"{tmp_path}/scripts:{site}"))["torch-shadowed"]

    assert finding.severity is Severity.BLOCKING
    assert finding.got == f"{tmp_path}/scripts/torch.py; the real one is at {site}/torch/__init__.py"
    assert "PYTHONPATH" in finding.remedy


def test_a_file_that_shadows_nothing_is_still_not_torch(
    ask: Callable[..., dict[str, Any]], site: Path
) -> None:
    """Then torch has to be installed as well."""
    (site / "torch.py").write_text("")

    finding = by_id(ask())["torch-shadowed"]

    assert finding.got == f"{site}/torch.py; no other torch is on the path"
    assert "install torch" in finding.remedy


def test_a_package_that_is_somebody_elses(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """A folder of that name with an `__init__.py` and no version file."""
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("")

    assert "torch-shadowed" in by_id(ask())


def test_a_folder_without_init_is_no_torch(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """As a repository that was cloned beside the script; it is a namespace to Python."""
    (site / "torch").mkdir()
    facts = ask()

    assert facts["torch"]["kind"] == "namespace"
    assert "without __init__.py" in by_id(facts)["torch-shadowed"].got


def test_a_folder_without_init_does_not_shadow_a_real_torch(
    ask: Callable[..., dict[str, Any]], site: Path, tmp_path: Path
) -> None:
    """Python passes it over."""
    install(site)
    (tmp_path / "scripts" / "torch").mkdir(parents=True)

    assert list(by_id(ask(PYTHONPATH=f"{tmp_path}/scripts:{site}"))) == ["why-nothing-found"]


def test_two_torches_are_told_with_their_order(
    ask: Callable[..., dict[str, Any]], site: Path, tmp_path: Path
) -> None:
    """The first is the one that counts; a link to the same is no second."""
    install(site)
    install(tmp_path / "other")
    (tmp_path / "same").symlink_to(site)

    finding = by_id(ask(PYTHONPATH=f"{site}:{tmp_path}/other:{tmp_path}/same"))["torch-twice"]

    assert finding.severity is Severity.WARNING
    assert finding.got == f"{site}/torch/__init__.py, {tmp_path}/other/torch/__init__.py"


def test_one_in_the_users_site_has_its_own_remedy() -> None:
    """`~/.local` comes before a conda environment."""
    copies = [
        {"kind": "package", "path": "/home/u/.local/torch/__init__.py", "whole": True, "user_site": True},
        {"kind": "package", "path": "/envs/fold/torch/__init__.py", "whole": True, "user_site": False},
    ]
    facts = package_facts(copies=copies)

    assert "PYTHONNOUSERSITE=1" in by_id(facts)["torch-twice"].remedy


def test_a_torch_in_the_working_folder_is_told(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """It is not on the worker's path, but on that of `python -m`."""
    install(site)
    Path("torch.py").write_text("")

    finding = by_id(ask())["torch-in-working-folder"]

    assert finding.severity is Severity.WARNING
    assert finding.got == str(Path("torch.py").absolute())


def test_a_finder_that_fails_is_quoted(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """An editable install puts finders of its own before Python's."""
    finder = "class Finder:\n    def find_spec(self, name, *rest):\n        if name == 'torch': 1 / 0\n"
    (site / "sitecustomize.py").write_text(f"import sys\n{finder}sys.meta_path.insert(0, Finder())\n")

    assert "ZeroDivisionError" in by_id(ask())["torch-missing"].got


# --------------------------------------------------------------------------------- what it says it is


def test_a_wheel_for_another_python(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """As after an environment was copied to another interpreter."""
    install(site, tag="cp39-cp39-manylinux_2_28_x86_64")

    finding = by_id(ask())["torch-wheel-unfit"]

    assert finding.severity is Severity.BLOCKING
    assert f"is for cp39, this is {TAG}" in finding.got


MACHINE = os.uname().machine
TAGS = [
    (f"{TAG}-{TAG}-manylinux_2_17_{MACHINE}", ""),
    (f"{TAG}-{TAG}-manylinux2014_{MACHINE}", ""),
    (f"{TAG}-{TAG}-manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}", ""),
    ("py3-none-any", ""),
    (f"cp38-abi3-linux_{MACHINE}", ""),
    (f"cp38-cp38-linux_{MACHINE}", "is for cp38"),
    (f"{TAG}-{TAG}x-linux_{MACHINE}", "is for the ABI"),
    (f"{TAG}-{TAG}-linux_s390x", "it is for linux_s390x"),
    (f"{TAG}-{TAG}-win_amd64", "it is for win_amd64"),
    (f"{TAG}-{TAG}-manylinux_2_99_{MACHINE}", "it needs glibc 2.99"),
    ("nonsense", "is no tag"),
]


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="its ABI has another name")
@pytest.mark.parametrize(("tag", "words"), TAGS)
def test_which_wheels_are_for_this_interpreter(tag: str, words: str) -> None:
    """By Python, ABI, machine and C library."""
    why_not = worker_why.unfit(tag)

    assert words in why_not
    assert bool(why_not) == bool(words)


@given(st.text(max_size=40))
def test_no_tag_is_too_odd(tag: str) -> None:
    """Whatever a file of metadata holds, there is an answer."""
    assert isinstance(worker_why.unfit(tag), str)


@pytest.mark.parametrize(
    ("metadata", "told", "differ"),
    [
        ("2.13.0", "2.13.0+cu130", False),  # as PyPI's wheels are
        ("2.13.0+cu130", "2.13.0+cu130", False),
        ("2.13.0", "2.13.0.post301", False),  # as conda-forge's packages are
        ("2.13.0+cpu", "2.13.0+cu130", True),
        ("2.12.1", "2.13.0+cu130", True),
    ],
)
def test_files_and_metadata_of_two_versions(
    ask: Callable[..., dict[str, Any]], site: Path, metadata: str, told: str, differ: bool
) -> None:
    """An update that was broken off leaves both; what packagers add makes no difference."""
    install(site, metadata=metadata, version=f"__version__ = {told!r}\n")
    found = by_id(ask())

    assert ("torch-half-installed" in found) is differ
    if differ:
        assert found["torch-half-installed"].got == f"files: {told}; metadata: {metadata}"


def test_metadata_of_two_versions(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """What pip calls one distribution is there twice."""
    install(site)
    (site / "torch-2.5.1.dist-info").mkdir()

    assert "metadata: 2.13.0, 2.5.1" in by_id(ask())["torch-half-installed"].got


@pytest.mark.parametrize("text", ["", "__version__ = compute()\n", "def (\n", "\0"])
def test_a_version_that_cannot_be_read(ask: Callable[..., dict[str, Any]], site: Path, text: str) -> None:
    """A file that was cut off is a sign of a broken installation."""
    (install(site) / "version.py").write_text(text)

    assert by_id(ask())["torch-half-installed"].severity is Severity.BLOCKING


@given(st.text(max_size=200))
def test_no_version_file_is_too_odd(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Each gives versions or says why not."""
    file = tmp_path_factory.getbasetemp() / "version.py"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))

    assert set(worker_why._version(file)) in ({"unavailable"}, {"torch", "cuda", "hip"})


# ------------------------------------------------------------------------------------ its libraries


def compiled(path: Path, source: str) -> Path:
    """A shared library of this source in C."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, code], check=True, timeout=60)
    code.unlink()
    return path


def test_a_damaged_library_is_named_with_the_loaders_words(
    ask: Callable[..., dict[str, Any]], site: Path
) -> None:
    """As a full disk leaves it: one that torch itself loads blocks."""
    file = install(site) / "lib" / "libtorch_cpu.so"
    file.write_bytes(b"\x7fELF")

    finding = by_id(ask())["torch-library-unloadable"]

    assert finding.severity is Severity.BLOCKING
    assert "file too short" in finding.got
    assert str(file) in finding.got
    assert "damaged" in finding.remedy


def test_a_library_that_torch_may_do_without_does_not_block(
    ask: Callable[..., dict[str, Any]], site: Path
) -> None:
    """Such as a transport that wants a library of another vendor."""
    file = site / "nvidia" / "nvshmem" / "lib" / "nvshmem_transport_ucx.so.3"
    install(site)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not an ELF file, but long enough to have a header, which is 64 bytes in size")

    finding = by_id(ask())["torch-library-optional"]

    assert finding.severity is Severity.INFO
    assert str(file) in finding.got


def test_a_library_that_an_essential_one_needs_blocks() -> None:
    """Its name is in the loader's words on the other."""
    words = "libcudart.so.13: file too short"
    absent = "librdmacm.so.1: cannot open shared object file: No such file or directory"
    failed = [
        {"path": "/t/lib/libtorch_cuda.so", "how": "refused", "words": words, "essential": True},
        {"path": "/t/lib/libc10_cuda.so", "how": "refused", "words": words, "essential": True},
        {"path": "/n/lib/libcudart.so.13", "how": "refused", "words": f"/n/lib/{words}", "essential": False},
        {"path": "/n/lib/libcufile_rdma.so.1", "how": "refused", "words": absent, "essential": False},
    ]
    found = why.findings(package_facts(libraries={"tried": 9, "untried": [], "failed": failed}))

    assert [(finding.id, finding.what.split()[0]) for finding in found] == [
        ("torch-library-unloadable", "2"),
        ("torch-library-unloadable", "1"),
        ("torch-library-optional", "1"),
    ]


@needs_compiler
@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("signal(11, SIG_DFL); raise(11);", "SIGSEGV"),
        ("for (;;) pause();", "hung"),
        ("_exit(3);", "exit code 3"),
    ],
    ids=["crashes", "hangs", "exits"],
)
def test_a_library_that_never_loads_hurts_its_own_child_alone(tmp_path: Path, body: str, how: str) -> None:
    """Whatever its constructor does; the next library is still tried."""
    headers = "#include <signal.h>\n#include <unistd.h>\n"
    bad = compiled(
        tmp_path / "lib" / "libc10.so", f"{headers}__attribute__((constructor)) void f(void) {{ {body} }}\n"
    )
    good = compiled(tmp_path / "lib" / "libother.so", "int f(void) { return 1; }\n")

    told = loading.try_all([bad, good], load_s=1.0)

    assert (told["tried"], told["untried"]) == (2, [])
    assert told["failed"] == [{"path": str(bad), "how": how, "words": "", "essential": True}]


def test_libraries_for_which_there_is_no_time_are_not_passed_over(tmp_path: Path) -> None:
    """They are named, and make a finding."""
    files = [tmp_path / "libone.so", tmp_path / "libtwo.so"]
    told = loading.try_all(files, all_s=-1.0)

    assert told == {"tried": 0, "untried": [str(file) for file in files], "failed": []}
    assert by_id(package_facts(libraries=told))["torch-libraries-untried"].got == "0 tried, 2 not"


def test_essential_libraries_are_tried_first(site: Path) -> None:
    """And links to the same file once."""
    folder = install(site)
    for name in ("libaoti.so", "libtorch_python.so", "libz.so.1.2"):
        (folder / "lib" / name).touch()
    (folder / "lib" / "libz.so.1").symlink_to("libz.so.1.2")
    (site / "nvidia" / "nccl" / "lib").mkdir(parents=True)
    (site / "nvidia" / "nccl" / "lib" / "libnccl.so.2").touch()

    names = [file.name for file in loading.of_torch(folder)]

    assert names[0] == "libtorch_python.so"
    assert sorted(names) == ["libaoti.so", "libnccl.so.2", "libtorch_python.so", names[-1]]
    assert names[-1].startswith("libz.so.1")


@pytest.mark.parametrize(
    ("how", "words", "advice"),
    [
        ("refused", "/lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.29' not found", "old torch"),
        ("refused", "libtorch_cuda.so: undefined symbol: ncclCommRegister", "LD_LIBRARY_PATH"),
        ("refused", "libcudnn.so.9: cannot open shared object file: No such file", "install the package"),
        ("refused", "libgomp.so.1: cannot allocate memory in static TLS block", "imported before"),
        ("refused", "libc10.so: failed to map segment from shared object", "noexec"),
        ("SIGSEGV", "", "--force-reinstall"),
        ("hung", "", "file system"),
    ],
)
def test_each_word_of_the_loader_has_its_own_remedy(how: str, words: str, advice: str) -> None:
    """What to do is not the same for a damaged and for a missing library."""
    failed = [{"path": "/t/lib/libtorch_cuda.so", "how": how, "words": words, "essential": True}]
    finding = by_id(package_facts(libraries={"tried": 1, "untried": [], "failed": failed}))[
        "torch-library-unloadable"
    ]

    assert advice in finding.remedy
    assert (words or how) in finding.got or how == "hung"


def test_a_library_that_comes_first_is_told(
    ask: Callable[..., dict[str, Any]], site: Path, tmp_path: Path
) -> None:
    """LD_LIBRARY_PATH wins over what the wheel brings; LD_PRELOAD over all."""
    install(site)
    own = site / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    other = tmp_path / "cuda" / "libcudnn.so.9"
    for file in (own, other):
        file.parent.mkdir(parents=True)
        file.touch()

    facts = ask(LD_LIBRARY_PATH=f"/nonexistent:{other.parent}:{own.parent}", LD_PRELOAD="/opt/lib/libhook.so")

    assert facts["first"] == [
        {"variable": "LD_PRELOAD", "file": "/opt/lib/libhook.so", "instead_of": None},
        {"variable": "LD_LIBRARY_PATH", "file": str(other), "instead_of": str(own)},
    ]
    assert facts["duplicates"] == {"libcudnn.so.9": [str(own), str(other)]}
    first = [finding for finding in why.findings(facts) if finding.id == "library-comes-first"]
    assert [finding.got for finding in first] == ["/opt/lib/libhook.so", f"{other} instead of {own}"]
    assert "env -u LD_LIBRARY_PATH" in first[1].command


def test_wheels_that_share_a_folder_are_told(ask: Callable[..., dict[str, Any]], site: Path) -> None:
    """NCCL for CUDA 12 and for CUDA 13, the files of one over those of the other."""
    install(site)
    for name in ("nvidia_nccl_cu12-2.27.5", "nvidia_nccl_cu13-2.28.9", "nvidia_cudnn_cu13-9.15.1.9"):
        (site / f"{name}.dist-info").mkdir()

    facts = ask()

    assert facts["wheels"] == {"nccl": ["nvidia_nccl_cu12-2.27.5", "nvidia_nccl_cu13-2.28.9"]}
    assert by_id(facts)["libraries-mixed"].got == "nccl: nvidia_nccl_cu12-2.27.5, nvidia_nccl_cu13-2.28.9"


def package_facts(**changes: Any) -> dict[str, Any]:
    """Facts on a torch against which nothing speaks."""
    path = "/envs/fold/torch/__init__.py"
    return {
        "python": "/envs/fold/bin/python",
        "python_version": "3.12.3",
        "prefix": "/envs/fold",
        "torch": {"kind": "package", "path": path, "error": ""},
        "copies": [{"kind": "package", "path": path, "whole": True, "user_site": False}],
        "working_folder": None,
        "version": {"torch": "2.13.0", "cuda": None, "hip": None},
        "distributions": [],
        "libraries": {"tried": 3, "untried": [], "failed": []},
        "duplicates": {},
        "wheels": {},
        "first": [],
        **changes,
    }


# -------------------------------------------------------------------------------------- the process


def program(path: Path, text: str) -> str:
    """An executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def unanswered(python: str, worker: Path, timeout_s: float = LONG_S) -> Finding:
    """The one finding on an interpreter that gives no answer."""
    facts = why.ask(python, worker, environment={"PATH": os.defpath}, timeout_s=timeout_s)
    (finding,) = why.findings(facts)
    assert (finding.id, finding.severity) == ("why-unanswered", Severity.WARNING)
    return finding


def test_an_interpreter_that_is_none(tmp_path: Path, worker: Path) -> None:
    """Its output is quoted."""
    python = program(tmp_path / "python", "#!/bin/sh\necho I am no snake; exit 7\n")

    assert (
        unanswered(python, worker).got
        == "it gave no answer; it ended with status 7; it printed: I am no snake"
    )


def test_an_interpreter_that_cannot_be_started(tmp_path: Path, worker: Path) -> None:
    """The kernel's words."""
    assert "No such file" in unanswered(str(tmp_path / "none"), worker).got


def test_an_interpreter_that_hangs_is_ended_with_its_children(
    tmp_path: Path, worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound, all of its session."""
    monkeypatch.setattr(why_process, "_DEATH_S", 0.2)
    python = program(
        tmp_path / "python", f"#!/bin/sh\nsleep 3600 &\necho $! > {tmp_path}/child\nsleep 3600\n"
    )

    finding = unanswered(python, worker, timeout_s=1.0)

    assert finding.got.startswith("it did not answer in time; it was killed")
    child = int((tmp_path / "child").read_text())
    assert ended(child)


def ended(pid: int) -> bool:
    """Whether a process that was killed is gone, or waits for its parent to collect it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
    return False


def pretender(path: Path, code: str) -> str:
    """A program that has the descriptor of the answer as `answer`."""
    text = path.with_suffix(".py")
    text.write_text(f"import os, sys\nanswer = int(sys.argv[4])\n{code}\n")
    # Not in the first line: a path with a blank cannot stand there.
    return program(path, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(text))} "$@"\n')


@pytest.mark.parametrize(
    ("stream", "words"), [("1", "it did not answer in time"), ("answer", "it answered without end")]
)
def test_an_interpreter_that_writes_without_end(
    tmp_path: Path, worker: Path, monkeypatch: pytest.MonkeyPatch, stream: str, words: str
) -> None:
    """Neither its output nor its answer fills the memory, and it is ended."""
    monkeypatch.setattr(why_process, "_DEATH_S", 0.2)
    python = pretender(tmp_path / "python", f"while True:\n    os.write({stream}, b'y' * 4096)")

    finding = unanswered(python, worker, timeout_s=2.0)

    assert finding.got.startswith(words)
    assert len(finding.got) < 2000


@pytest.mark.parametrize("answer", ["", "[]", "{", '{"other": 1}'])
def test_an_answer_that_is_none_of_ours(tmp_path: Path, worker: Path, answer: str) -> None:
    """It is not taken for facts."""
    python = pretender(tmp_path / "python", f"os.write(answer, {answer.encode()!r})")

    assert "it gave no answer; it ended with status 0" in unanswered(python, worker).got


def test_our_own_bug_is_told_as_ours() -> None:
    """With the way to report it."""
    facts = why_process._facts(b"", "", RANK_BUG_EXIT, b"Traceback ...\nKeyError: 'x'")
    (finding,) = why.findings(facts)

    assert "KeyError" in finding.got
    assert "a bug of cpinfra" in finding.remedy


def test_the_real_torch_of_this_interpreter_passes(worker: Path) -> None:
    """All of its libraries load, each on its own."""
    facts = why.ask(sys.executable, worker, environment=dict(os.environ), timeout_s=100)

    assert facts["torch"]["kind"] == "package"
    assert facts["libraries"]["tried"] > 5
    assert facts["libraries"]["untried"] == []
    assert not [finding for finding in why.findings(facts) if finding.severity is Severity.BLOCKING]


def test_who_waits_for_the_answer_can_be_interrupted(tmp_path: Path, worker: Path) -> None:
    """What the tick raises comes out, and what was started is ended."""
    child = tmp_path / "child"
    python = program(tmp_path / "python", f"#!/bin/sh\necho $$ > {child}\nexec sleep 3600\n")

    def tick() -> None:
        if child.exists() and child.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        why.ask(python, worker, environment={"PATH": os.defpath}, timeout_s=LONG_S, tick=tick)

    assert not Path(f"/proc/{child.read_text().strip()}").exists()
