"""hydra: its own folder of results, its own logging, and a config beside the script."""

import json
import logging
import os
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    rank = os.environ["RANK"]
    logging.getLogger(__name__).info("rank %s", rank)
    with open(f"config-{rank}.json", "w") as file:
        json.dump(
            [
                OmegaConf.to_container(config),
                HydraConfig.get().job.name,
                list(HydraConfig.get().overrides.task),
                os.path.relpath(os.getcwd(), hydra.utils.get_original_cwd()),
            ],
            file,
        )


if __name__ == "__main__":
    main()
