"""The launch recipe: what it holds, and that its programs run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import processes
import reports
from cpinfra import report
from cpinfra.record import block
from cpinfra.record import shell
from cpinfra.record.recipe import allocator_variable
from cpinfra.record.recipe import recipe

PROGRAM = """
import os, sys
import torch.distributed as dist
from datetime import timedelta
import torch
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print("told", total.item(), sys.argv[1:], os.environ["NCCL_ODD"], os.environ["PYTHONPATH"], flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""
ODD = "it's $HOME `x`\n```\nend"


def here(**changes: Any) -> report.Recipe:
    """A recipe of two ranks for the interpreter of the tests."""
    return recipe(reports.launch(interpreter=sys.executable, cp0=2, cp1=1, **changes))


def bash(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script, run."""
    return subprocess.run(
        ["bash", "-c", script, "launch.sh", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


class TestEnvironment:
    """Which variables a launch sets."""

    def test_keeps_what_was_in_force_but_for_our_workers_own(self) -> None:
        """The user's variables stay; what only lets ranks be forked, and our cookie, go."""
        ours = {"PYTHONWARNINGS": "", "PYTHONINSPECT": "", "CPINFRA_COOKIE": "x", "MKL_NUM_THREADS": "1"}
        env = recipe(reports.launch(env={"NCCL_DEBUG": "WARN", "UCX_TLS": "tcp", **ours})).env

        assert env["NCCL_DEBUG"] == "WARN"
        assert env["UCX_TLS"] == "tcp"
        assert not set(ours) & set(env)

    def test_sets_the_hardening(self) -> None:
        """Also where the run did not say so."""
        env = recipe(reports.launch(env={})).env

        assert env == {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "RES_OPTIONS": "timeout:1 attempts:1",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }

    def test_names_gpus_by_uuid(self) -> None:
        """In rank order, and in PCI order for programs that use numbers."""
        env = recipe(reports.cuda_launch(2, cp0=2, cp1=1)).env

        assert env["CUDA_VISIBLE_DEVICES"] == ",".join(reports.UUIDS[:2])
        assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"

    @pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
    def test_leaves_the_users_allocator_alone(self, name: str) -> None:
        """Under whichever name it was set: two names would contradict each other."""
        env = recipe(reports.cuda_launch(4, env={name: "max_split_size_mb:64"})).env

        assert [key for key in env if "ALLOC" in key] == [name]
        assert env[name] == "max_split_size_mb:64"

    @pytest.mark.parametrize(
        ("torch", "name"),
        [
            (None, "PYTORCH_CUDA_ALLOC_CONF"),
            ("odd", "PYTORCH_CUDA_ALLOC_CONF"),
            ("2.5.1", "PYTORCH_CUDA_ALLOC_CONF"),
            ("2.9.1+cu128", "PYTORCH_CUDA_ALLOC_CONF"),
            ("2.10.0", "PYTORCH_ALLOC_CONF"),
            ("2.13.0a0+git1", "PYTORCH_ALLOC_CONF"),
            ("3.0", "PYTORCH_ALLOC_CONF"),
        ],
    )
    def test_allocator_has_the_name_that_this_torch_reads(self, torch: str | None, name: str) -> None:
        """2.9 knows the new name and yet does not take the setting from it; an unknown torch gets the old."""
        assert allocator_variable(torch) == name


class TestRecipe:
    """The recipe as the report holds it."""

    def test_timeouts_of_nccl_and_gloo_are_apart(self) -> None:
        """And both end before the whole run does."""
        timeouts = recipe(reports.launch()).timeouts

        assert set(timeouts) == {"nccl", "gloo", "run"}
        assert timeouts["gloo"] < timeouts["nccl"] < timeouts["run"]

    @pytest.mark.parametrize("gpus", [0, 4])
    def test_every_guard_says_setting_value_and_reason(self, gpus: int) -> None:
        """Each once; those of GPUs only with GPUs."""
        made = recipe(reports.cuda_launch(gpus) if gpus else reports.launch())
        settings = [guard.setting for guard in made.guards]

        assert all(guard.setting and guard.reason for guard in made.guards)
        assert len(set(settings)) == len(settings)
        assert ("CUDA_VISIBLE_DEVICES" in settings) == bool(gpus)
        assert any("rendezvous" in setting for setting in settings)

    def test_nccl_library_is_loaded_before_torch(self) -> None:
        """By torchrun's line and by the program."""
        made = recipe(reports.cuda_launch(4, nccl_library="/opt/nccl/libnccl.so.2"))

        assert "env LD_PRELOAD=/opt/nccl/libnccl.so.2 /home" in made.commands["torchrun"]
        assert made.commands["spawn"].index("CDLL(") < made.commands["spawn"].index("import torch")
        assert made.nccl_library == "/opt/nccl/libnccl.so.2"

    @pytest.mark.parametrize("path", ["/opt/my nccl/lib.so", "/opt/a:b/lib.so", "lib.so"])
    def test_what_cannot_be_preloaded_is_said(self, path: str) -> None:
        """LD_PRELOAD would take it for two libraries, or for none."""
        made = recipe(reports.cuda_launch(4, nccl_library=path))

        assert "LD_PRELOAD" not in made.commands["torchrun"]
        assert isinstance(made.nccl_library, report.Unavailable)
        assert path in made.nccl_library.unavailable

    def test_pythonpath_with_a_colon_is_said(self) -> None:
        """PYTHONPATH would take it for two folders."""
        assert recipe(reports.launch(pythonpath=("/a", "/b"))).pythonpath == ["/a", "/b"]
        assert isinstance(recipe(reports.launch(pythonpath=("/a:b",))).pythonpath, report.Unavailable)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [({"interpreter": "python3"}, "absolute"), ({"dp": 0}, "at least one rank")],
    )
    def test_rejects(self, change: dict[str, Any], reason: str) -> None:
        """What no recipe can be made of."""
        with pytest.raises(ValueError, match=reason):
            reports.launch(**change)


class TestPrograms:
    """Both ways to launch, as they stand."""

    def test_launch_block_runs_and_keeps_the_log(self, tmp_path: Path) -> None:
        """Hostile values, folder and arguments arrive whole; the output goes to the log too."""
        (tmp_path / "p.py").write_text(PROGRAM)
        folders = ("/a b", "/c'd")
        made = here(
            workdir=str(tmp_path / "w 'd\n$x"), pythonpath=folders, env={"NCCL_ODD": ODD, "NCCL_A B": "x"}
        )
        done = bash(block.launch(made), "0", "b 'c", PROGRAM=str(tmp_path / "p.py"))
        told = f"told 2.0 {['0', chr(98) + chr(32) + chr(39) + chr(99)]} {ODD} {':'.join(folders)}"

        assert done.returncode == 0, done.stderr
        assert told in done.stdout
        (log,) = (tmp_path / "w 'd\n$x").iterdir()
        assert told in log.read_text()

    def test_launch_block_keeps_the_exit_code(self, tmp_path: Path) -> None:
        """A rank that fails fails the script, through tee."""
        (tmp_path / "p.py").write_text("import sys; sys.exit(3)")
        done = bash(
            block.launch(here(env={}, workdir=str(tmp_path))), PROGRAM=str(tmp_path / "p.py"), LOG="/dev/null"
        )

        assert done.returncode == 1
        assert "exitcode  : 3" in done.stdout

    def test_launch_block_without_a_program_says_what_to_set(self) -> None:
        """And starts nothing."""
        done = bash(block.launch(here(env={})), PROGRAM="")

        assert done.returncode != 0
        assert "set PROGRAM to the Python file" in done.stderr

    def test_spawn_program_runs_as_a_file(self, tmp_path: Path) -> None:
        """The ranks meet, make the mesh, and leave nothing behind."""
        made = here(env={"NCCL_ODD": ODD}, run_words="two '''ranks\n")
        path = tmp_path / "ranks.py"
        path.write_text(made.commands["spawn"])
        done = subprocess.run(
            [sys.executable, str(path)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert sorted(re.findall(r"rank (\d) at \((\d), (\d), (\d)\)", done.stdout)) == [
            ("0", "0", "0", "0"),
            ("1", "0", "1", "0"),
        ]
        assert list(tmp_path.iterdir()) == [path]

    def test_spawn_program_ends_when_its_time_is_over(self, tmp_path: Path) -> None:
        """With the exit code of `timeout`, and with its ranks ended."""
        text = here(env={}).commands["spawn"].replace("    program(mesh, device)\n", "    time.sleep(600)\n")
        (tmp_path / "ranks.py").write_text(text)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "ranks.py")],
            env={**os.environ, "TIMEOUT_S": "0.1"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

        assert done.returncode == 124
        assert "not finished after 0 s" in done.stderr

    def test_spawn_program_that_is_told_to_end_takes_its_ranks_along(self, tmp_path: Path) -> None:
        """SIGTERM, as `timeout` sends it: no rank stays, and no folder."""
        # In one piece: ranks share the pipe.
        stalled = "    os.write(1, f'rank {os.getpid()}\\n'.encode())\n    time.sleep(600)\n"
        text = here(env={}).commands["spawn"].replace("    program(mesh, device)\n", stalled)
        (tmp_path / "ranks.py").write_text(text)
        with subprocess.Popen(
            [sys.executable, str(tmp_path / "ranks.py")],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(2)]
            ranks = [int(line.removeprefix("rank ")) for line in told]
            process.terminate()
            code = process.wait(30)

        assert code == 143
        processes.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), "no rank")
        assert [path.name for path in tmp_path.iterdir()] == ["ranks.py"]

    def test_groups_of_the_mesh_get_the_timeout(self, tmp_path: Path) -> None:
        """torch would give them 30 min."""
        told = (
            "    for axis in AXES:\n"
            "        group = mesh.get_group(axis)._get_backend(torch.device('cpu'))\n"
            "        print(f'timeout {group.options._timeout.total_seconds():.0f}', flush=True)\n"
            "    program(mesh, device)\n"
        )
        text = here(env={}).commands["spawn"].replace("    program(mesh, device)\n", told)
        (tmp_path / "ranks.py").write_text(text)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "ranks.py")],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert re.findall(r"timeout (\d+)", done.stdout) == ["120"] * 6


class TestQuoting:
    """Any text comes through bash and Python unchanged, on one line, and ends no block of Markdown."""

    @given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
    def test_word_of_bash(self, text: str) -> None:
        """By its own rules: one line without a row of backticks."""
        word = shell.word(text)

        assert len(word.splitlines()) == 1
        assert "```" not in word

    @pytest.mark.parametrize(
        "text", ["", "a", "a b", "'", '"$x"', "\\", "a\nb\tc", "```", "é\u2028\x1b", ODD]
    )
    def test_bash_reads_the_same(self, text: str) -> None:
        """Also control characters and those of other scripts."""
        done = bash(f"printf %s {shell.word(text)}")

        assert done.stdout == text

    @given(st.text(), st.text())
    def test_spawn_program_holds_the_same(self, name: str, value: str) -> None:
        """It stays Python, and its environment is the recipe's."""
        text = recipe(reports.launch(env={name: value}, run_words=value)).commands["spawn"]
        found = next(node for node in ast.parse(text).body if isinstance(node, ast.Assign))

        assert "```" not in text
        if not name.startswith("CPINFRA_"):
            assert ast.literal_eval(found.value)[name] == value
