"""The zygote: imports torch once, forks the ranks of each generation, and ends them.

It runs one thread, touches no tensor and no device, and answers to one supervisor: events go up one pipe,
orders come down another, and when that one closes it kills its ranks, removes the node-local folder and
exits.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import importlib
import os
import platform
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import ledger
from . import node_local
from . import processes
from .channel import Orders
from .channel import Writer
from .exceptions import text_of
from .exceptions import traceback_of
from .signals import RANK_BUG_EXIT
from .signals import STACKS_SIGNAL
from .spec import GenerationSpec

_TICK_S = 0.1
_URGENT = ("stacks", "kill")
_IMPORT_MAX_S = 600.0
"""Past the supervisor's own bound: it judges, this only ends what nobody watches any more."""
_ROOM_BESIDE_LEDGER_BYTES = 1 << 20


def run(events_fd: int, orders_fd: int, parent_pid: int) -> int:
    """Serve one supervisor; returns the exit status."""
    for fd in (events_fd, orders_fd):
        os.set_inheritable(fd, False)
    if os.getppid() != parent_pid and Path(f"/proc/{parent_pid}").exists():
        Writer(events_fd).send({"event": "wrapped", "parent": os.getppid()})
        return 3
    # Until there is something to clean up the kernel may end this process with its supervisor: an import
    # that hangs in C code could not look at a pipe.
    processes.die_with_parent(parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever the caller had blocked
    zygote = Zygote(events_fd, orders_fd, parent_pid)
    try:
        return zygote.serve()
    except Exception:  # noqa: BLE001 - reported as our bug
        zygote.events.send({"event": "bug", "traceback": traceback.format_exc()})
        return 1
    finally:
        zygote.close()


class Zygote:
    """See the module's text."""

    def __init__(self, events_fd: int, orders_fd: int, parent_pid: int) -> None:
        self.events = Writer(events_fd)
        self._events_fd = events_fd
        self._orders = Orders(orders_fd)
        self._parent_pid = parent_pid
        self._cookie = os.environ[processes.COOKIE_VARIABLE]
        self._folder: Path | None = None
        self._lock_fd = -1
        self._pid = os.getpid()
        self._put_off: list[dict[str, Any]] = []
        self._ranks: dict[int, tuple[int, int]] = {}
        """pid -> (generation, rank) of those that live"""

    def serve(self) -> int:
        """Import torch, answer, then do as told until the supervisor quits or is gone."""
        self.events.send({"event": "hello", "pid": os.getpid(), "python": platform.python_version()})
        if not self._import_torch():
            return 3
        processes.outlive_parent()
        processes.adopt_orphans(True)
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        signal.signal(signal.SIGALRM, lambda *_: self._obey_urgent())
        if os.getppid() != self._parent_pid:
            return 0
        while (orders := self._next_orders()) is not None:
            for order in orders:
                if order["order"] == "quit":
                    return 0
                self._obey(order)
        return 0

    def close(self) -> None:
        """End every rank and every descendant, remove the folder, and say so."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pid in self._ranks:
            processes.kill(pid, signal.SIGKILL)
        left = processes.kill_family(self._cookie, timeout_s=2.0, known=self._ranks)
        processes.reap_all()  # orphans that ended by themselves would become the supervisor's
        node_local.remove(self._cookie)
        try:
            self.events.send({"event": "closed", "left": left})
        except OSError:
            pass  # nobody listens: the supervisor is gone

    def _import_torch(self) -> bool:
        """Import torch and answer what it is; a failure is an answer too."""
        started = time.monotonic()
        try:
            import torch  # noqa: F401
            import torch.distributed as dist

            if not dist.is_available():
                raise ImportError(
                    "torch.distributed.is_available() is False: this torch was built without it"
                )
            from . import fork_safety
            from . import rank  # noqa: F401
            from . import software
        except BaseException as error:  # noqa: BLE001 - whatever a foreign import raises is the answer
            self.events.send(_import_failure("torch", error))
            return False
        answer = {"software": software.describe(), "unsafe": fork_safety.problems()}
        self.events.send({"event": "software", "seconds": time.monotonic() - started, **answer})
        return True

    def _next_orders(self) -> list[dict[str, Any]] | None:
        """Wait for orders, those first that came during an import; None once the supervisor is gone."""
        if self._put_off:
            orders, self._put_off = self._put_off, []
            return orders
        ready, _, _ = select.select([self._orders.fd], [], [], _TICK_S)
        return self._orders.pending() if ready else []

    def _obey(self, order: Mapping[str, Any]) -> None:
        actions: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "fork": self._fork,
            "import": self._import,
            "kernels": self._kernels,
            "stacks": self._ask_stacks,
            "kill": self._kill_ranks,
        }
        actions[order["order"]](order)

    def _import(self, order: Mapping[str, Any]) -> None:
        """Import modules that later generations need, while the present one works."""
        started = time.monotonic()
        with self._attentive(), _ended_if_it_hangs():
            try:
                for module in order["modules"]:
                    importlib.import_module(module)
            except BaseException as error:  # noqa: BLE001 - as in `_import_torch`
                self.events.send(_import_failure(", ".join(order["modules"]), error))
            else:
                seconds = time.monotonic() - started
                self.events.send({"event": "imported", "modules": order["modules"], "seconds": seconds})

    def _kernels(self, order: Mapping[str, Any]) -> None:
        """Run kernels on each visible GPU, in children, so that this process knows no device."""
        from . import kernels

        with self._attentive(), _children_held():
            answers, opinion = kernels.run_all_and_ask(order["count"], order["timeout_s"])
        self.events.send({"event": "kernels", "answers": answers, "cuda_usable": opinion})

    @contextmanager
    def _attentive(self) -> Iterator[None]:
        """During something that does not come back to look at the pipe of orders: a timer does."""
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _obey_urgent(self) -> None:
        """During something long: what concerns living ranks is done now, the rest when it is through."""
        ready, _, _ = select.select([self._orders.fd], [], [], 0)
        orders = self._orders.pending() if ready else []
        if orders is None:
            self.close()
            os._exit(0)
        for order in orders:
            if order["order"] in _URGENT:
                self._obey(order)
            else:
                self._put_off.append(order)

    def _fork(self, order: Mapping[str, Any]) -> None:
        """Fork all ranks of one generation."""
        spec = GenerationSpec.from_json(order["spec"])
        started = time.monotonic()
        try:
            folder = self._generation_folder(spec)
        except OSError as error:
            self.events.send({"event": "no-room", "generation": spec.generation, "text": str(error)})
            return
        with _children_held():
            unsafe = self._prepare_fork(spec)
            pids, trouble = ([], "") if unsafe else self._fork_ranks(spec, folder)
        message = {"generation": spec.generation, "seconds": time.monotonic() - started}
        if unsafe:
            self.events.send({"event": "fork-unsafe", "unsafe": unsafe, **message})
        elif trouble:
            self.events.send({"event": "cannot-fork", "text": trouble, "forked": len(pids), **message})
        else:
            self.events.send({"event": "forked", "pids": pids, "folder": str(folder), **message})

    def _prepare_fork(self, spec: GenerationSpec) -> list[str]:
        """Load once what every rank would load, and look whether a fork is safe."""
        from . import fork_safety
        from . import registry

        registry.load(spec.checks)
        gc.freeze()  # the collector leaves what exists alone, so its pages stay shared with the ranks
        return fork_safety.problems()

    def _generation_folder(self, spec: GenerationSpec) -> Path:
        """Make the generation's folder and its ledger."""
        if self._folder is None:
            need = ledger.size_bytes(spec.world) + _ROOM_BESIDE_LEDGER_BYTES
            self._folder, self._lock_fd = node_local.create(self._cookie, need)
        folder = self._folder / f"generation-{spec.generation}"
        folder.mkdir(mode=0o700)
        ledger.create(folder / "ledger", spec.world)
        return folder

    def _fork_ranks(self, spec: GenerationSpec, folder: Path) -> tuple[list[int], str]:
        """(pids, why the kernel refused the next one); after a refusal those that it gave are ended."""
        pids: list[int] = []
        for number in range(spec.world):
            try:
                pid = os.fork()
            except OSError as error:
                for rank in pids:
                    processes.kill(rank, signal.SIGKILL)
                return pids, f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
            if pid == 0:
                self._become_rank(spec, folder, number)
            self._ranks[pid] = (spec.generation, number)
            pids.append(pid)
        return pids, ""

    def _become_rank(self, spec: GenerationSpec, folder: Path, number: int) -> None:
        """In the child: live as a rank and never return into the zygote's frames."""
        status = RANK_BUG_EXIT  # of an exception that even `live` does not catch
        try:
            for number_of_signal in (signal.SIGCHLD, signal.SIGALRM, signal.SIGINT):
                signal.signal(number_of_signal, signal.SIG_DFL)  # SIGINT: a death, not an exception of ours
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            os.close(self._orders.fd)
            os.close(self._lock_fd)
            from . import rank

            ends = {"zygote_pid": self._pid, "events_fd": self._events_fd}
            status = rank.live(rank.Berth(spec=spec, rank=number, folder=folder, **ends))
        except BaseException:  # noqa: BLE001 - to the rank's log; its exit status tells the supervisor
            _print_traceback()
        finally:
            _flush()
            os._exit(status)  # no exit handlers of the zygote's imports in a rank

    def _reap(self) -> None:
        """Report every rank that has ended; runs as a signal handler, so also during an import."""
        for pid, status in processes.reap(list(self._ranks)):
            generation, number = self._ranks.pop(pid)
            where = {"generation": generation, "rank": number, "pid": pid}
            self.events.send({"event": "exited", "at_s": time.monotonic(), **where, **_exit_of(status)})

    def _of_generation(self, order: Mapping[str, Any]) -> list[int]:
        ranks = order.get("ranks")
        living = dict(self._ranks)
        return [
            pid
            for pid, (generation, number) in living.items()
            if generation == order["generation"] and (ranks is None or number in ranks)
        ]

    def _ask_stacks(self, order: Mapping[str, Any]) -> None:
        for pid in self._of_generation(order):
            processes.kill(pid, STACKS_SIGNAL)

    def _kill_ranks(self, order: Mapping[str, Any]) -> None:
        for pid in self._of_generation(order):
            processes.kill(pid, signal.SIGKILL)


@contextmanager
def _ended_if_it_hangs() -> Iterator[None]:
    """What hangs in C code, where no handler runs, must not outlive its supervisor for ever."""
    faulthandler.dump_traceback_later(_IMPORT_MAX_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _children_held() -> Iterator[None]:
    """Keep SIGCHLD waiting, so that no child is reaped before it is known whose it is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _print_traceback() -> None:
    """To a log that may be on a full disk: whatever happens here, the rank must not climb into the zygote."""
    try:
        traceback.print_exc()
    except BaseException:  # noqa: BLE001 - see above
        pass


def _flush() -> None:
    """What a rank printed last may have no end of line; a full disk must not keep it from ending."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


def _exit_of(status: int) -> dict[str, Any]:
    """Exit code or signal name of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return {"code": None, "signal": _signal_name(number)}
    return {"code": os.WEXITSTATUS(status), "signal": None}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _import_failure(what: str, error: BaseException) -> dict[str, Any]:
    text = {"type": type(error).__name__, "text": text_of(error), "traceback": traceback_of(error)}
    return {"event": "import-failed", "module": what, **text}
