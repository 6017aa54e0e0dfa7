"""The contract with the user: the RLJob models and the CRD made from them."""

from roll_api.job import API_VERSION, GROUP, VERSION, RLJob, spec_hash
from roll_api.load import load_job
from roll_api.problems import InvalidJob, Problem
from roll_api.roles import ROLE_NAMES, RoleName
from roll_api.spec import JobSpec
from roll_api.status import JobStatus

__all__ = [
    "API_VERSION",
    "GROUP",
    "ROLE_NAMES",
    "VERSION",
    "InvalidJob",
    "JobSpec",
    "JobStatus",
    "Problem",
    "RLJob",
    "RoleName",
    "load_job",
    "spec_hash",
]
