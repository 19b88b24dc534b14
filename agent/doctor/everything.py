"""All checks of `pagelet doctor`."""

from pagelet.agent.doctor.checks import Finding
from pagelet.agent.doctor.gpu import check_gpus
from pagelet.agent.doctor.kernels import check_kernels
from pagelet.agent.doctor.memory import check_memory, check_shared_memory
from pagelet.agent.doctor.processor import check_cores, check_instructions
from pagelet.agent.doctor.system import check_open_files, check_packages, check_port


def check_everything(model: str | None, host: str, port: int) -> list[Finding]:
    """Every check, for a model if one is given."""
    gpus = check_gpus()
    on_cpu = all(finding.status == "absent" for finding in gpus)
    num_gpus = sum(finding.name.startswith("GPU ") for finding in gpus)
    if model is None:
        of_model = []
    else:
        from pagelet.agent.doctor.model import check_model  # tokenizers take a while to import

        of_model = [check_model(model)]
    return [
        *of_model,
        check_packages(),
        check_instructions(),
        check_kernels(),
        check_cores(),
        check_memory(model, on_cpu=on_cpu),
        check_shared_memory(max(num_gpus, 1)),
        check_open_files(),
        check_port(host, port),
        *gpus,
    ]
