"""What accelerators can do at best, from their makers' data sheets.

Matrix rates are those without sparsity, with float32 accumulation where the sheet tells them apart.
Sources: NVIDIA A100 (2021), H100, H200, L40S, L4 and A10 data sheets; NVIDIA Ada GPU architecture
white paper (RTX 4090); NVIDIA DGX B200 data sheet, divided by its 8 GPUs; AMD Instinct MI300X data
sheet. Sizes are decimal, as there.
"""

import dataclasses
from collections.abc import Mapping

_TERA, _GIGA = 1e12, 1e9


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One accelerator."""

    name: str
    memory_bytes: float
    read_bytes: float
    """A second, from its memory."""
    flops: Mapping[str, float]
    """A second, by the type of the factors."""
    link_bytes: float
    """A second, to all others of its node together, both directions: NVLink, Infinity Fabric, or
    PCIe where there is neither."""
    widens_integers: bool = True
    """Whether int8 and int4 weights are widened to bfloat16 before they are multiplied, as by the
    engine's kernels for GPUs; its CPU library multiplies them as they are."""

    def rate(self, kind: str) -> float:
        """Of products with weights of a type; one without a unit of its own is widened."""
        widened = self.widens_integers and kind in ("int8", "int4")
        for candidate in ("bfloat16" if widened else kind, "bfloat16", "float32"):
            if candidate in self.flops:
                return self.flops[candidate]
        raise ValueError(f"{self.name} has no rate for {kind}")


def _gpu(name: str, gigabytes: float, read: float, link: float, **tera: float) -> Hardware:
    """`read` and `link` in GB/s, rates in TFLOP/s."""
    flops = {kind: rate * _TERA for kind, rate in tera.items()}
    flops["float16"] = flops["bfloat16"]
    return Hardware(name, gigabytes * _GIGA, read * _GIGA, flops, link * _GIGA)


GPUS: Mapping[str, Hardware] = {
    "a100": _gpu("A100 SXM 80GB", 80, 2039, 600, float32=19.5, bfloat16=312, int8=624),
    "h100": _gpu("H100 SXM", 80, 3350, 900, float32=67, bfloat16=989, fp8=1979, int8=1979),
    "h200": _gpu("H200 SXM", 141, 4800, 900, float32=67, bfloat16=989, fp8=1979, int8=1979),
    "b200": _gpu("B200", 180, 8000, 1800, float32=75, bfloat16=2250, fp8=4500, int8=4500),
    "l40s": _gpu("L40S", 48, 864, 64, float32=91.6, bfloat16=362, fp8=733, int8=733),
    "l4": _gpu("L4", 24, 300, 64, float32=30.3, bfloat16=121, fp8=242, int8=242),
    "a10": _gpu("A10", 24, 600, 64, float32=31.2, bfloat16=125, int8=250),
    "rtx4090": _gpu("RTX 4090", 24, 1008, 64, float32=82.6, bfloat16=165, fp8=330, int8=661),
    "mi300x": _gpu("MI300X", 192, 5300, 896, float32=163, bfloat16=1307, fp8=2615, int8=2615),
}
"""By the name that the command takes."""


def find_gpu(name: str) -> Hardware:
    """Raises ValueError, with the names that there are."""
    key = name.lower().replace("-", "").replace(" ", "").removesuffix("sxm")
    if key not in GPUS:
        raise ValueError(f"no figures for a GPU {name!r} here; there are: {', '.join(GPUS)}")
    return GPUS[key]
