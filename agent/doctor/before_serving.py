"""The checks that `pagelet serve` makes before it starts anything: those that take no time."""

from pagelet.agent.doctor.checks import Finding
from pagelet.agent.doctor.gpu import check_gpus
from pagelet.agent.doctor.memory import check_memory, check_shared_memory
from pagelet.agent.doctor.processor import check_cores, check_instructions
from pagelet.agent.doctor.system import check_open_files, check_packages
from pagelet.protocol.config import EngineOptions, SchedulerOptions


def check_before_serving(options: EngineOptions) -> list[Finding]:
    """What this machine is for these options."""
    findings = [check_packages(), check_cores(), check_open_files()]
    findings += check_step_size(options.scheduler)
    if options.runner == "simulated":
        return findings
    parallel = options.parallel
    processes = parallel.num_ranks // parallel.nnodes * parallel.data_parallel_size
    needed = processes if options.device == "cuda" else 0
    gpus = [] if options.device == "cpu" else check_gpus(needed=needed)
    on_cpu = all(finding.status == "absent" for finding in gpus)
    model = None if options.model.load_format == "dummy" else options.model.source
    return [
        *findings,
        check_instructions(),
        check_memory(
            model,
            on_cpu=on_cpu,
            copies=parallel.data_parallel_size,
            machines=parallel.nnodes,
        ),
        check_shared_memory(processes),
        *gpus,
    ]


def check_step_size(options: SchedulerOptions) -> list[Finding]:
    """Whether a step has room for a token of each request that may run."""
    tokens, requests = options.max_num_batched_tokens, options.max_num_seqs
    if tokens >= requests:
        return []
    return [
        Finding(
            name="step size",
            status="warn",
            summary=f"at most {tokens} tokens for up to {requests} requests, so some of them will "
            "wait in every step",
            advice=f"raise --max-num-batched-tokens to {requests} at least, or lower "
            f"--max-num-seqs to {tokens}",
        )
    ]
