"""A child dies with its parent, however the parent dies, and a group dies as one."""

import os
import signal
import subprocess
import sys

import pytest

from pagelet.process import proc
from support.processes import is_alive, wait_for

CHILD = """
import sys, time
from pagelet.process.proc import set_parent_death_signal
set_parent_death_signal(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
command = [sys.executable, "-c", {CHILD!r}, str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_the_child_dies_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        child_pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: not is_alive(child_pid))


def test_a_child_whose_parent_is_already_gone_exits_at_once():
    not_the_parent = os.getppid()
    done = subprocess.run([sys.executable, "-c", CHILD, str(not_the_parent)], capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")


def test_kill_group_ends_grandchildren_and_may_be_repeated():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        child_pid = int(parent.stdout.readline())
        proc.kill_group(parent.pid)
    wait_for(lambda: not is_alive(child_pid))
    proc.kill_group(parent.pid)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(3, "exit code 3"), (-signal.SIGKILL, "signal SIGKILL"), (-250, "signal 250")],
)
def test_describe_exit(returncode, words):
    assert proc.describe_exit(returncode) == words
