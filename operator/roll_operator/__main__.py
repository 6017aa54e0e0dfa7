"""`python -m roll_operator`: the operator of a cluster."""

import logging
import os
import sys

import uvloop

from roll_operator.controller.cluster.operator import run
from roll_operator.controller.cluster.settings import BadSettings, Settings


def main() -> int:
    try:
        settings = Settings.read(os.environ)
    except BadSettings as error:
        print(f"roll-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    return uvloop.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
