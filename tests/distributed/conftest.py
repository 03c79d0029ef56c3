"""Programs in processes of their own, run once for all tests here."""

import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).parent
collect_ignore = ["cases.py", "job.py"]


def start(script, *arguments, stdout=None):
    """A program that chooses its own number of devices."""
    env = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, HERE / script, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=stdout, stderr=stdout)


class Job:
    """Processes that run a case of `job.py` together."""

    def __init__(self, processes, folder, case):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self._paths = [folder / f"{case}{i}.out" for i in range(processes)]
        self._processes = []
        for i, path in enumerate(self._paths):
            with open(path, "wb") as out:
                arguments = (i, processes, port, folder, case)
                self._processes.append(start("job.py", *arguments, stdout=out))

    def wait_for(self, i):
        """The exit code of process `i`; none of them outlasts a test that failed."""
        try:
            return self._processes[i].wait(200)
        except subprocess.TimeoutExpired:
            for process in self._processes:
                process.kill()
            raise

    def said(self, i):
        return self._paths[i].read_text()

    def wait(self):
        """The exit codes, and what each process said."""
        each = range(len(self._paths))
        return [self.wait_for(i) for i in each], [self.said(i) for i in each]


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """`once(name, make)`: the folder that `make(folder)` filled, for all workers."""

    def folder_of(name, make):
        if "PYTEST_XDIST_WORKER" not in os.environ:
            folder = tmp_path_factory.mktemp(name)
            make(folder)
            return folder
        folder = tmp_path_factory.getbasetemp().parent / name
        ended = folder.with_suffix(".ended")
        try:
            folder.mkdir()
        except FileExistsError:
            while not ended.exists():
                time.sleep(0.2)
            assert ended.read_text() == "made", "another worker could not make it"
            return folder
        told = "failed"
        try:
            make(folder)
            told = "made"
        finally:
            # Renamed, so that it is never read half written.
            folder.with_suffix(".now").write_text(told)
            folder.with_suffix(".now").rename(ended)
        return folder

    return folder_of


@pytest.fixture(scope="session")
def run_job():
    return Job


@pytest.fixture(scope="session")
def definitions():
    """`cases.py` as a module of this process."""
    spec = importlib.util.spec_from_file_location("cases", HERE / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cases_folder(once):
    """Where eight devices have left their results."""

    def make(folder):
        assert start("cases.py", folder).wait(600) == 0

    return once("cases", make)
