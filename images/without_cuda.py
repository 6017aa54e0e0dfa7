"""Lets torch's CUDA build be imported where most of CUDA's libraries are left out (worker-cpu.lock).

The public index carries no other build for x86. Without a GPU not one function of cuBLAS, cuDNN or
NCCL is ever called, but the loader insists on a file of that name, and on every function if Python
binds them at once. So Python is told to bind a function when it is first called, and each name that
the loader misses is given to a library of torch's own. What is called (cudart, which says that there
is no GPU) is the real one. 3 GB less in every image.
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_paths()["platlib"])
MISSING = re.compile(r"(lib[\w+-]+\.so[\w.]*): cannot open shared object file")
PROOF = """
import torch
layer = torch.nn.Linear(4, 4)
layer(torch.ones(2, 4)).sum().backward()
torch.optim.AdamW(layer.parameters()).step()
torch.linalg.svd(torch.eye(3))
assert not torch.cuda.is_available()
"""


def main() -> None:
    libraries = SITE / "torch" / "lib"
    (SITE / "bind_when_called.pth").write_text(
        "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n", encoding="utf-8"
    )
    while (tried := _prove()).returncode:
        missing = MISSING.search(tried.stderr)
        if missing is None or (libraries / missing[1]).is_symlink():
            sys.exit(tried.stderr)
        (libraries / missing[1]).symlink_to("libc10.so")
        print(f"left out: {missing[1]}", flush=True)


def _prove() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROOF], capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    main()
