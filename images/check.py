"""Whether an image holds what its pods need, seen from inside: `images/build --check` runs it there, and a test on
the cluster.

No GPU is needed for the check of a CUDA image: its libraries are loaded, and say that there is none.
"""

import importlib.util
import os
import shutil
import subprocess
import sys

USER = 10001


def main() -> None:
    image, accelerator = sys.argv[1:]
    assert os.getuid() == USER, f"runs as user {os.getuid()}, not as {USER}"
    tools = [name for name in ("uv", "cc", "make", "buildah") if shutil.which(name)]
    tools += [name for name in ("/opt/uv", "/build") if os.path.exists(name)]
    assert not tools, f"tools of the build were left in the image: {', '.join(tools)}"
    said = operator() if image == "operator" else worker(accelerator)
    print(f"check: {image}: {said}", flush=True)


def operator() -> str:
    assert not importlib.util.find_spec("torch"), "the operator needs no torch"
    subprocess.run(["roll", "--help"], check=True, stdout=subprocess.DEVNULL)
    return "roll starts"


def worker(accelerator: str) -> str:
    import torch

    assert not importlib.util.find_spec("kopf"), "what only the operator needs is in the image"
    # Without the environment of a job it names what is missing, and so got past its imports.
    bare = subprocess.run([sys.executable, "-m", "roll_workers"], capture_output=True, text=True)
    assert bare.returncode == 2 and "ROLL_ROLE is not set" in bare.stderr, bare.stderr
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(2, 4)).sum().backward()
    if accelerator == "cpu":
        return f"torch {torch.__version__}"
    assert torch.version.cuda, f"torch {torch.__version__} knows no CUDA"
    assert torch.distributed.is_nccl_available(), "no NCCL"
    # Asked, each library of NVIDIA's is loaded; a placeholder would end the process here.
    cudnn, nccl = torch.backends.cudnn.version(), torch.cuda.nccl.version()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}, NCCL {nccl}, {gpus} GPUs"


if __name__ == "__main__":
    main()
