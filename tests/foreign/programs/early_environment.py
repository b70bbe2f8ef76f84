"""Sets the environment before the imports that read it, as scripts do at their top."""

import json
import os

os.environ["OMP_NUM_THREADS"] = "2"
os.environ.setdefault("MKL_NUM_THREADS", "2")
os.environ.update({"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCHDYNAMO_DISABLE": "1"})
os.putenv("KMP_BLOCKTIME", "0")
os.environ["MPLCONFIGDIR"] = os.path.abspath("matplotlib")
os.environ["MPLBACKEND"] = "svg"
os.environ["HF_HOME"] = os.path.abspath("huggingface")
os.environ["TORCH_HOME"] = os.path.abspath("hub")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["PYTORCH_JIT"] = "0"
os.environ["TORCH_LOGS"] = "+dynamo"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("inductor")
os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"

import huggingface_hub.constants
import matplotlib
import torch
import torch.distributed as dist

with open(f"facts-{os.environ['RANK']}.json", "w") as file:
    import torch._dynamo.config
    import torch._inductor.runtime.cache_dir_utils
    import torch.jit._state

    json.dump(
        {
            "threads": torch.get_num_threads(),
            "debug level": str(dist.get_debug_level()),
            "dynamo is off": torch._dynamo.config.disable,
            "scripting": torch.jit._state._enabled.enabled,
            "matplotlib": matplotlib.get_configdir(),
            "backend": matplotlib.get_backend(),
            "hub": torch.hub.get_dir(),
            "huggingface": huggingface_hub.constants.HF_HOME,
            "cuda": os.environ["CUDA_VISIBLE_DEVICES"],
            "logs": torch._logging._internal.log_state.is_artifact_enabled("dynamo")
            or "dynamo" in str(torch._logging._internal.log_state.log_qname_to_level),
            "inductor": torch._inductor.runtime.cache_dir_utils.cache_dir(),
            "backtraces": torch.utils._cpp_backtrace is None
            if hasattr(torch.utils, "_cpp_backtrace")
            else None,
        },
        file,
    )
