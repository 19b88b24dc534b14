"""What keeps a pod from working, in words that say what to do."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pagelet.operator.kube.resources import Object
from pagelet.operator.replicas import is_ready
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION, EXIT_USAGE

_REFUSED: Final = (EXIT_CONFIGURATION, EXIT_USAGE)
"""Exit codes of `pagelet serve`: starting it again would not help."""
_WAITING: Final = {
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
_SAME: Final = {"ErrImagePull": "ImagePullBackOff"}
"""The kubelet says the one and the other by turns."""
_OF_THE_SPEC: Final = {
    "CreateContainerConfigError",
    "ConfigurationRefused",
    "InvalidImageName",
    "ModelUnavailable",
}
_MOST_CHARACTERS: Final = 600
_OF_POD: Final = re.compile(
    r"^([Cc]reate Pod \S+ in StatefulSet \S+ failed error: )?"
    r'(pods "[^"]*" is forbidden|Pod "[^"]*" is invalid): '
)
"""Its name is another at each attempt."""


_MISSING: Final = re.compile(r'(secret|configmap|persistentvolumeclaim)s? "[^"]+" not found')


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """Something that does not mend itself."""

    reason: str
    """One word for programs."""
    message: str

    @property
    def is_of_the_spec(self) -> bool:
        """Whether only another spec, or an object that it names, can solve it."""
        return self.reason in _OF_THE_SPEC or _MISSING.search(self.message) is not None


def pod_problem(pod: Object, warnings: Iterable[str] = ()) -> Problem | None:
    """What is wrong with a pod; `warnings` are messages of its events, newest last, which are
    looked at only if the pod itself tells nothing."""
    name, status = pod["metadata"]["name"], pod["status"]
    if pod["metadata"].get("deletionTimestamp") or is_ready(pod):
        return None
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Problem("Unschedulable", f"pod {name}: {condition.get('message')}")
    for container in _containers(status):
        if (problem := _container_problem(pod, container)) is not None:
            return problem
    for warning in reversed(list(warnings)):
        return Problem("CannotStart", f"pod {name}: {_short(warning)}")
    return None


def creation_problem(owner: str, words: str) -> Problem:
    """What keeps a Deployment or StatefulSet from making its pods, in the words that its controller
    was told: a quota, a LimitRange, a pod security level."""
    return Problem("PodsRefused", f"{owner} cannot make pods: {_short(_OF_POD.sub('', words))}")


def waits_silently(pod: Object) -> bool:
    """Whether a pod is still being set up, so that only its events could tell what it waits for: a
    volume whose Secret is missing, say."""
    return pod["status"].get("phase") == "Pending" and not pod["metadata"].get("deletionTimestamp")


def is_downloading(pod: Object) -> bool:
    """Whether a pod's loader runs."""
    statuses = pod["status"].get("initContainerStatuses") or ()
    return any("running" in container.get("state", {}) for container in statuses)


def _containers(status: Object) -> Iterator[Object]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _container_problem(of: Object, container: Object) -> Problem | None:
    pod = of["metadata"]["name"]
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason = str(waiting.get("reason"))
    if (reason := _SAME.get(reason, reason)) in _WAITING:
        return Problem(reason, f"pod {pod}: {_short(waiting.get('message') or '')}")
    last = ended or (container.get("lastState") or {}).get("terminated") or {}
    if container.get("ready") or not last.get("exitCode"):
        return None
    words = _last_words(last.get("message") or "")
    if last.get("reason") == "OOMKilled":
        limit = "it used more memory than its limit: raise resources.memory, or lower what the "
        return Problem("OutOfMemory", f"pod {pod}: {limit}engine takes (kvCache, maxNumSeqs)")
    if container["name"] == "fetch-model":
        return Problem("ModelUnavailable", f"pod {pod}: {words or 'the download failed'}")
    if last["exitCode"] in _REFUSED:
        return Problem("ConfigurationRefused", f"pod {pod}: {words}")
    where = f"{pod} -n {of['metadata']['namespace']} -c {container['name']}"
    advice = words or f"see kubectl logs {where} --previous"
    return Problem("Crashing", f"pod {pod}: exit code {last['exitCode']}: {advice}")


def _last_words(log: str) -> str:
    """The message of the last line of a log, which is JSON or text."""
    lines = [line for line in log.split("\n") if line.strip()]  # JSON may hold other line ends
    if not lines:
        return ""
    try:
        entry: Any = json.loads(lines[-1])
    except ValueError:
        entry = None
    if isinstance(entry, dict) and "message" in entry:
        return _short(str(entry["message"]))
    return _short(lines[-1].removeprefix("Error: "))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
