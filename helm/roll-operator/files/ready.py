"""What `helm test` asks: are RLJobs served, and has an operator read the cluster?"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE = 60.0


def rljobs_are_served() -> bool:
    request = urllib.request.Request(
        "https://kubernetes.default.svc/apis/roll.dev/v1alpha1",
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"},
    )
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
        return any(resource["name"] == "rljobs" for resource in json.load(answer)["resources"])


def operator_is_ready() -> bool:
    with urllib.request.urlopen(f"{os.environ['OPERATOR']}/readyz", timeout=10) as answer:
        return bool(answer.status == 200)


def main() -> None:
    deadline = time.monotonic() + PATIENCE
    for question in (rljobs_are_served, operator_is_ready):
        while True:
            try:
                answer = str(question())
            except (urllib.error.URLError, OSError) as error:
                answer = str(error)
            if answer == "True":
                break
            if time.monotonic() > deadline:
                sys.exit(f"{question.__name__}: {answer}")
            time.sleep(1)
        print(f"{question.__name__}: yes")


main()
