"""What the fork server imports for any method and workload, so that workers start with it already loaded.

torch imports its compiler at the first optimizer or DistributedDataParallel; every worker would pay for that.
"""

import safetensors.torch  # noqa: F401
import torch._dynamo
import torch.nn.parallel  # noqa: F401
